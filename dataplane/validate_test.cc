#include <chrono>
#include <complex>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/testing/sample.h"
#include "gtest/gtest.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane {
namespace {

using enum CollectiveKind;
using testing::Sample;

std::string FindProblem(const Collective& collective, int rank = 0,
                        int world_size = 4) {
  const Status status = Validate(collective, rank, world_size);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  }
  return std::string(status.message());
}

TEST(ValidateTest, GoodArgumentsPass) {
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    for (const int rank : {0, 1, 3}) {
      for (const size_t count : {0, 8}) {
        const Sample sample(
            static_cast<CollectiveKind>(i),
            {.rank = rank, .world_size = 4, .count = count, .root = 1});
        EXPECT_EQ(FindProblem(sample.collective, rank), "");
      }
    }
  }
}

TEST(ValidateTest, ErrorsNameTheArgumentAndItsValue) {
  std::vector<float> values(8);
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce}),
            "argument tensors: all_reduce takes 1 tensor, got 0");
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor(nullptr, DataType::kInt32, {2})}}),
            "argument tensors[0]: null data pointer of int32[2]");
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor(values)},
                         .reduce_op = static_cast<ReduceOp>(77)}),
            "argument reduce_op: unknown value 77, got float32[8]");
  for (const int root : {-1, 4}) {
    EXPECT_EQ(FindProblem({.kind = CollectiveKind::kBroadcast,
                           .tensors = {Tensor(values)},
                           .root = root}),
              "argument root: invalid root rank: " + std::to_string(root) +
                  ", must be from 0 to 3");
  }
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kBroadcast,
                         .tensors = {Tensor(values), Tensor(values)}}),
            "argument tensors: broadcast takes 1 tensor, got 2");
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kBarrier,
                         .tensors = {Tensor(values)}}),
            "argument tensors: barrier takes none, got 1");
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kBarrier,
                         .timeout = std::chrono::milliseconds(-5)}),
            "argument timeout: negative value -5ms");
  EXPECT_EQ(FindProblem({.kind = static_cast<CollectiveKind>(99)}),
            "argument kind: unknown value 99");
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kBarrier}, /*rank=*/4),
            "rank 4 is not in a group of 4");
}

TEST(ValidateTest, OperationsWithoutMeaningForATypeAreErrors) {
  std::complex<double> numbers[2];
  for (const ReduceOp op :
       {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                           .tensors = {Tensor(numbers, {2})},
                           .reduce_op = op}),
              absl::StrCat("argument reduce_op: all_reduce does not support ",
                           ReduceOpName(op),
                           " on complex tensors, got complex128[2]"));
  }
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor(numbers, {2})},
                         .reduce_op = ReduceOp::kAvg}),
            "");
  bool flags[2] = {};
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor(flags, {2})},
                         .reduce_op = ReduceOp::kAvg}),
            "argument reduce_op: Cannot use ReduceOp.AVG with boolean inputs, "
            "got bool[2]");
  float values[2] = {};
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor(values, {2})},
                         .reduce_op = ReduceOp::kBand}),
            "argument reduce_op: Cannot use ReduceOp.BAND with non-integral "
            "dtype, got float32[2]");
  int16_t integers[2] = {};
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor(integers, {2})},
                         .reduce_op = ReduceOp::kPremulSum}),
            "argument reduce_op: Cannot use ReduceOp.PREMUL_SUM with integral "
            "dtype, got int16[2]");
}

TEST(ValidateTest, EveryOperationHasMeaningForTheTypesOfItsClass) {
  using enum ReduceOp;
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto type = static_cast<DataType>(i);
    const bool complex =
        type == DataType::kComplex64 || type == DataType::kComplex128;
    const bool boolean = type == DataType::kBool;
    const bool integral = boolean || i <= static_cast<int>(DataType::kInt64) ||
                          type == DataType::kUint16 ||
                          type == DataType::kUint32 ||
                          type == DataType::kUint64;
    const bool pair = i > static_cast<int>(DataType::kOpaque);
    for (const ReduceOp op : {kSum, kAvg, kMin, kMax, kProduct, kBand, kBor,
                              kBxor, kPremulSum, kMinloc, kMaxloc}) {
      const bool bits = op == kBand || op == kBor || op == kBxor;
      const bool finds = op == kMinloc || op == kMaxloc;
      const bool expected = pair || finds               ? pair && finds
                            : type == DataType::kOpaque ? false
                            : op == kSum                ? true
                            : op == kAvg                ? !boolean
                            : op == kPremulSum          ? !integral
                            : bits                      ? integral
                                                        : !complex;
      double memory[2];
      EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                             .tensors = {Tensor(memory, type, {1})},
                             .reduce_op = op})
                    .empty(),
                expected)
          << ReduceOpName(op) << " of " << DataTypeName(type);
    }
  }
}

TEST(ValidateTest, OpaqueElementsAndPairsAreReducedByTheirOperationsAlone) {
  char memory[24] = {};
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor::Opaque(memory, 12, {2})}}),
            "argument reduce_op: sum does not reduce opaque elements, only a "
            "function of the user does, got opaque[2] of 12 bytes");
  int32_t pairs[2] = {};
  const Tensor pair(pairs, DataType::kInt32Int32, {1});
  EXPECT_EQ(
      FindProblem({.kind = CollectiveKind::kAllReduce, .tensors = {pair}}),
      "argument reduce_op: sum does not reduce int32_int32, only minloc, "
      "maxloc "
      "and functions do, got int32_int32[1]");
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor(pairs, {2})},
                         .reduce_op = ReduceOp::kMaxloc}),
            "argument reduce_op: maxloc does not reduce int32, only pairs of a "
            "value and an index, got int32[2]");
}

TEST(ValidateTest, AFunctionFitsTheElements) {
  char memory[24] = {};
  Collective reduce = {.kind = CollectiveKind::kAllReduce,
                       .tensors = {Tensor::Opaque(memory, 12, {2})},
                       .reduce_op = ReduceOp::kUser};
  EXPECT_EQ(FindProblem(reduce),
            "argument reduce_op: no function given for user, got opaque[2] of "
            "12 bytes");
  const auto nothing = [](const void*, void*, size_t) {};
  reduce.function = ReduceFunction(nothing);
  EXPECT_EQ(FindProblem(reduce), "");
  reduce.function = ReduceFunction(nothing, {.element_bytes = 12});
  EXPECT_EQ(FindProblem(reduce), "");
  // As the communicator passes it on.
  OpaqueToBytes(reduce);
  EXPECT_EQ(reduce.Describe(), "all_reduce #0 opaque[2,12] user");
  EXPECT_EQ(FindProblem(reduce), "");
  reduce.function =
      ReduceFunction(nothing, {.element_bytes = 8, .name = "merge"});
  EXPECT_EQ(
      FindProblem(reduce),
      "argument reduce_op: function \"merge\" is for elements of 8 bytes, "
      "not of 12, got opaque[2,12]");
}

TEST(ValidateTest, AFunctionForATypeOfElementsTakesNoOther) {
  int64_t memory[2] = {};
  Collective reduce = {.kind = CollectiveKind::kAllReduce,
                       .tensors = {Tensor(memory, {2})},
                       .reduce_op = ReduceOp::kUser};
  const auto first = [](auto a, auto) { return a; };
  reduce.function = ReduceFunction::ForElements<double>(first);
  EXPECT_EQ(FindProblem(reduce),
            "argument reduce_op: function \"user\" is for float64, got "
            "int64[2]");
  reduce.function = ReduceFunction::ForElements<int64_t>(first);
  EXPECT_EQ(FindProblem(reduce), "");
  // A type of the user: any tensor of that size.
  struct Record {
    int32_t key;
    int32_t value;
  };
  reduce.function = ReduceFunction::ForElements<Record>(first);
  EXPECT_EQ(FindProblem(reduce), "");
  // Opaque elements may be of any type, also as the communicator passes them.
  reduce.function = ReduceFunction::ForElements<double>(first);
  reduce.tensors = {Tensor::Opaque(memory, 8, {2})};
  EXPECT_EQ(FindProblem(reduce), "");
  OpaqueToBytes(reduce);
  EXPECT_EQ(FindProblem(reduce), "");
}

TEST(ValidateTest, OpaqueElementsOfACollectiveHaveOneSize) {
  char memory[48] = {};
  EXPECT_EQ(FindProblem({.kind = CollectiveKind::kAllGatherIntoTensor,
                         .inputs = {Tensor::Opaque(memory, 4, {1})},
                         .outputs = {Tensor::Opaque(memory + 8, 8, {2})}}),
            "argument outputs[0]: opaque elements of 4 and of 8 bytes");
}

class ValidateListsTest : public ::testing::Test {
 protected:
  // Returns the error of a valid collective of `kind` on `rank` of 2 after
  // `spoil` has changed it.
  template <typename Spoil>
  std::string Spoiled(CollectiveKind kind, Spoil&& spoil, int rank = 0) {
    Sample sample(kind, {.rank = rank, .world_size = 2, .count = 4});
    EXPECT_EQ(FindProblem(sample.collective, rank, 2), "");
    spoil(sample.collective);
    return FindProblem(sample.collective, rank, 2);
  }

  float memory_[16] = {};
  Tensor five_{memory_, {5}};
};

TEST_F(ValidateListsTest, AllGather) {
  EXPECT_EQ(Spoiled(kAllGather, [](Collective& c) { c.outputs.pop_back(); }),
            "argument outputs: invalid output tensor list at index 0 (expected "
            "length 2, got 1)");
  EXPECT_EQ(Spoiled(kAllGather, [&](Collective& c) { c.outputs[1] = five_; }),
            "");
  EXPECT_EQ(Spoiled(
                kAllGather, [&](Collective& c) { c.outputs[1] = five_; },
                /*rank=*/1),
            "argument outputs[1]: invalid tensor size at index 1 (expected "
            "[4], got [5])");
  EXPECT_EQ(Spoiled(kAllGather,
                    [&](Collective& c) {
                      c.outputs[1] = Tensor(memory_, DataType::kInt32, {4});
                    }),
            "argument outputs[1]: Invalid usage of tensors with different "
            "dtypes: Found float32 and int32");
  EXPECT_EQ(
      Spoiled(kAllGather,
              [&](Collective& c) {
                c.outputs[1] = Tensor(memory_, {4}, {DeviceType::kCuda, 1});
              }),
      "argument outputs[1]: tensors on different devices: found cpu and "
      "cuda:1");
  EXPECT_EQ(Spoiled(kAllGather, [](Collective& c) { c.inputs.clear(); }),
            "argument inputs: all_gather takes 1 tensor, got 0");
  EXPECT_EQ(Spoiled(kAllGather, [&](Collective& c) { c.tensors = {five_}; }),
            "argument tensors: all_gather takes none, got 1");
}

// Three times this is 2, in 64 bits.
TEST_F(ValidateListsTest, AProductBeyondAllNumbersIsNoSmallOne) {
  const Tensor huge(memory_, DataType::kUint8, {0x5555555555555556});
  const Tensor two(memory_, DataType::kUint8, {2});
  EXPECT_EQ(
      Validate(
          {.kind = kAllGatherIntoTensor, .inputs = {huge}, .outputs = {two}}, 0,
          3)
          .message(),
      "argument outputs[0]: output tensor size must be equal to "
      "world_size times input tensor size, got uint8[2] for "
      "uint8[6148914691236517206] and 3 ranks");
  EXPECT_EQ(
      Validate(
          {.kind = kReduceScatterTensor, .inputs = {two}, .outputs = {huge}}, 0,
          3)
          .message(),
      "argument inputs[0]: input tensor must be the same size as output "
      "size times world size, got uint8[2] for "
      "uint8[6148914691236517206] and 3 ranks");
}

TEST_F(ValidateListsTest, AllGatherIntoTensor) {
  EXPECT_EQ(Spoiled(kAllGatherIntoTensor,
                    [&](Collective& c) { c.outputs = {five_}; }),
            "argument outputs[0]: output tensor size must be equal to "
            "world_size times input tensor size, got float32[5] for float32[4] "
            "and 2 ranks");
  EXPECT_EQ(Spoiled(kAllGatherIntoTensor,
                    [&](Collective& c) {
                      c.outputs = {Tensor(memory_, {2, 4})};
                    }),
            "");
}

TEST_F(ValidateListsTest, Gather) {
  EXPECT_EQ(Spoiled(kGather, [](Collective& c) { c.outputs.clear(); }),
            "Argument ``gather_list`` must be specified on destination rank");
  EXPECT_EQ(Spoiled(
                kGather, [&](Collective& c) { c.outputs = {five_}; }, 1),
            "Argument ``gather_list`` must NOT be specified on non-destination "
            "ranks, got 1 tensors");
  EXPECT_EQ(Spoiled(kGather, [](Collective& c) { c.outputs.pop_back(); }),
            "argument outputs: Incorrect output list size 1. Output list size "
            "should be 2, same as size of the process group");
  EXPECT_EQ(Spoiled(kGather, [&](Collective& c) { c.outputs[1] = five_; }),
            "argument outputs[1]: invalid tensor size at index 1 (expected "
            "[4], got [5])");
}

TEST_F(ValidateListsTest, Scatter) {
  EXPECT_EQ(Spoiled(kScatter, [](Collective& c) { c.inputs.clear(); }),
            "Argument ``scatter_list`` must be specified on source rank");
  EXPECT_EQ(Spoiled(
                kScatter, [&](Collective& c) { c.inputs = {five_}; }, 1),
            "Argument ``scatter_list`` must NOT be specified on non-source "
            "ranks, got 1 tensors");
  EXPECT_EQ(Spoiled(kScatter, [](Collective& c) { c.inputs.pop_back(); }),
            "argument inputs: Incorrect input list size 1. Input list size "
            "should be 2, same as size of the process group");
}

TEST_F(ValidateListsTest, ReduceScatter) {
  EXPECT_EQ(Spoiled(kReduceScatter, [](Collective& c) { c.inputs.pop_back(); }),
            "argument inputs: invalid input tensor list size, must be world "
            "size, got 1 for 2 ranks");
  EXPECT_EQ(
      Spoiled(kReduceScatter, [&](Collective& c) { c.inputs[1] = five_; }), "");
  EXPECT_EQ(
      Spoiled(
          kReduceScatter, [&](Collective& c) { c.inputs[1] = five_; }, 1),
      "argument inputs[1]: invalid tensor size at index 1 (expected [4], got "
      "[5])");
  EXPECT_EQ(
      Spoiled(kReduceScatterTensor, [&](Collective& c) { c.inputs = {five_}; }),
      "argument inputs[0]: input tensor must be the same size as output "
      "size times world size, got float32[5] for float32[4] and 2 ranks");
  EXPECT_EQ(
      Spoiled(kReduceScatter,
              [](Collective& c) { c.reduce_op = ReduceOp::kBand; }),
      "argument reduce_op: Cannot use ReduceOp.BAND with non-integral dtype, "
      "got float32[4]");
}

TEST_F(ValidateListsTest, AllToAll) {
  EXPECT_EQ(Spoiled(kAllToAll, [](Collective& c) { c.inputs.pop_back(); }),
            "argument inputs: input tensor list size 1 does not match world "
            "size 2");
  EXPECT_EQ(Spoiled(kAllToAll, [](Collective& c) { c.outputs.pop_back(); }),
            "argument outputs: output tensor list size 1 does not match world "
            "size 2");
  EXPECT_EQ(Spoiled(kAllToAll, [&](Collective& c) { c.inputs[1] = five_; }),
            "");
  EXPECT_EQ(Spoiled(
                kAllToAll, [&](Collective& c) { c.inputs[1] = five_; }, 1),
            "argument outputs[1]: invalid tensor size at index 1 (expected "
            "[5], got [4])");
}

TEST_F(ValidateListsTest, AllToAllSingle) {
  EXPECT_EQ(
      Spoiled(kAllToAllSingle, [&](Collective& c) { c.inputs = {five_}; }),
      "argument inputs[0]: Tensor's dim 0 does not divide equally across group "
      "size (float32[5] among 2 ranks)");
  const auto with_splits = [&](std::vector<int64_t> input,
                               std::vector<int64_t> output) {
    return Spoiled(kAllToAllSingle, [&](Collective& c) {
      c.input_splits = input;
      c.output_splits = output;
    });
  };
  EXPECT_EQ(with_splits({4, 4}, {4, 4}), "");
  EXPECT_EQ(with_splits({0, 8}, {0, 8}), "");
  EXPECT_EQ(
      with_splits({8}, {}),
      "argument input_split_sizes: Number of tensor splits not equal to group "
      "size (got 1 for 2 ranks)");
  EXPECT_EQ(
      with_splits({}, {3, 4}),
      "argument output_split_sizes: Split sizes doesn't match total dim 0 "
      "size (sum 7, got float32[8])");
  EXPECT_EQ(with_splits({9, -1}, {}),
            "argument input_split_sizes[1]: bad value -1");
  EXPECT_EQ(with_splits({INT64_MAX, 1}, {}),
            "argument input_split_sizes[0]: bad value 9223372036854775807");
  EXPECT_EQ(
      with_splits({3, 5}, {}),
      "argument output_split_sizes: rank 0 gives itself 3 elements and takes "
      "4");
  EXPECT_EQ(Spoiled(kAllToAllSingle,
                    [&](Collective& c) {
                      c.inputs = {Tensor(memory_, std::span<const int64_t>())};
                    }),
            "argument inputs[0]: all_to_all_single needs a dim 0, got "
            "float32[]");
}

// On rank 1 of 2; each part has four elements.
TEST(ValidateOverlapTest, InputsMayBeAtThisRanksOwnPlaceAlone) {
  std::vector<float> memory(20);
  const auto at = [&](int64_t offset, int64_t count) {
    return Tensor(memory.data() + offset, {count});
  };
  const auto problem = [](CollectiveKind kind, Collective::Tensors inputs,
                          Collective::Tensors outputs) {
    return FindProblem({.kind = kind,
                        .inputs = std::move(inputs),
                        .outputs = std::move(outputs),
                        .root = 1},
                       /*rank=*/1, /*world_size=*/2);
  };
  const std::string elsewhere =
      "argument inputs[0]: overlaps outputs[0], and not at this rank's own "
      "place";
  for (const CollectiveKind kind : {kAllGather, kGather}) {
    EXPECT_EQ(problem(kind, {at(4, 4)}, {at(0, 4), at(4, 4)}), "");
    EXPECT_EQ(problem(kind, {at(8, 4)}, {at(0, 4), at(4, 4)}), "");
    EXPECT_EQ(problem(kind, {at(0, 4)}, {at(0, 4), at(4, 4)}), elsewhere);
    EXPECT_EQ(problem(kind, {at(3, 4)}, {at(0, 4), at(8, 4)}), elsewhere);
    EXPECT_EQ(problem(kind, {at(8, 4)}, {at(0, 4), at(3, 4)}),
              "argument outputs[1]: overlaps outputs[0]");
  }
  for (const CollectiveKind kind : {kReduceScatter, kScatter}) {
    EXPECT_EQ(problem(kind, {at(0, 4), at(4, 4)}, {at(4, 4)}), "");
    EXPECT_EQ(problem(kind, {at(0, 4), at(4, 4)}, {at(0, 4)}), elsewhere);
    // Inputs may overlap each other.
    EXPECT_EQ(problem(kind, {at(0, 4), at(0, 4)}, {at(8, 4)}), "");
  }
  EXPECT_EQ(problem(kAllGatherIntoTensor, {at(4, 4)}, {at(0, 8)}), "");
  EXPECT_EQ(problem(kAllGatherIntoTensor, {at(0, 4)}, {at(0, 8)}), elsewhere);
  EXPECT_EQ(problem(kReduceScatterTensor, {at(0, 8)}, {at(4, 4)}), "");
  EXPECT_EQ(problem(kReduceScatterTensor, {at(0, 8)}, {at(0, 4)}), elsewhere);
  EXPECT_EQ(problem(kReduceScatterTensor, {at(0, 8)}, {at(8, 4)}), "");
  EXPECT_EQ(problem(kAllToAllSingle, {at(0, 8)}, {at(8, 8)}), "");
  EXPECT_EQ(problem(kAllToAllSingle, {at(0, 8)}, {at(0, 8)}), elsewhere);
  EXPECT_EQ(problem(kAllToAll, {at(0, 4), at(4, 4)}, {at(8, 4), at(12, 4)}),
            "");
  EXPECT_EQ(problem(kAllToAll, {at(0, 4), at(4, 4)}, {at(8, 4), at(4, 4)}), "");
  EXPECT_EQ(problem(kAllToAll, {at(0, 4), at(4, 4)}, {at(0, 4), at(8, 4)}),
            elsewhere);
}

}  // namespace
}  // namespace muster::dataplane
