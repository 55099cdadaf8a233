#include "dataplane/collective.h"

#include <chrono>
#include <complex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

std::string ProblemOf(const Collective& collective, int rank = 0,
                      int world_size = 4) {
  const absl::Status status = Validate(collective, rank, world_size);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
  return std::string(status.message());
}

TEST(CollectiveTest, DescribesWhatItDoes) {
  std::vector<float> values(1024);
  EXPECT_EQ((Collective{.kind = CollectiveKind::kAllReduce,
                        .tensors = {Tensor(values)},
                        .reduce_op = ReduceOp::kSum,
                        .sequence = 418})
                .Describe(),
            "all_reduce #418 float32[1024] sum");
  int64_t number = 0;
  EXPECT_EQ((Collective{.kind = CollectiveKind::kBroadcast,
                        .tensors = {Tensor(&number, {1})},
                        .root = 2,
                        .sequence = 3})
                .Describe(),
            "broadcast #3 int64[1] root 2");
  EXPECT_EQ(
      (Collective{.kind = CollectiveKind::kBarrier, .sequence = 4}).Describe(),
      "barrier #4");
}

TEST(CollectiveTest, BytesAreThoseOfAllTensors) {
  std::vector<float> a(3);
  std::vector<double> b(2);
  EXPECT_EQ((Collective{.tensors = {Tensor(a), Tensor(b)}}).bytes(), 28u);
}

TEST(CollectiveTest, GoodArgumentsPass) {
  std::vector<float> values(8);
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce,
                       .tensors = {Tensor(values)}}),
            "");
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kBroadcast,
                       .tensors = {Tensor(values)},
                       .root = 3}),
            "");
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kBarrier}), "");
}

TEST(CollectiveTest, ErrorsNameTheArgumentAndItsValue) {
  std::vector<float> values(8);
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce}),
            "argument tensors: all_reduce takes 1 tensor, got 0");
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce,
                       .tensors = {Tensor(nullptr, DataType::kInt32, {2})}}),
            "argument tensors[0]: null data pointer of int32[2]");
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce,
                       .tensors = {Tensor(values)},
                       .reduce_op = static_cast<ReduceOp>(77)}),
            "argument reduce_op: unknown value 77, got float32[8]");
  for (const int root : {-1, 4}) {
    EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kBroadcast,
                         .tensors = {Tensor(values)},
                         .root = root}),
              "argument root: invalid root rank: " + std::to_string(root) +
                  ", must be from 0 to 3");
  }
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kBroadcast,
                       .tensors = {Tensor(values), Tensor(values)}}),
            "argument tensors: broadcast takes 1 tensor, got 2");
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kBarrier,
                       .tensors = {Tensor(values)}}),
            "argument tensors: barrier takes none, got 1");
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kBarrier,
                       .timeout = std::chrono::milliseconds(-5)}),
            "argument timeout: negative value -5ms");
  EXPECT_EQ(ProblemOf({.kind = static_cast<CollectiveKind>(99)}),
            "argument kind: unknown value 99");
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kBarrier}, /*rank=*/4),
            "rank 4 is not in a group of 4");
}

TEST(CollectiveTest, OperationsWithoutMeaningForATypeAreErrors) {
  std::complex<double> numbers[2];
  for (const ReduceOp op :
       {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor(numbers, {2})},
                         .reduce_op = op}),
              absl::StrCat("argument reduce_op: all_reduce does not support ",
                           ReduceOpName(op),
                           " on complex tensors, got complex128[2]"));
  }
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce,
                       .tensors = {Tensor(numbers, {2})},
                       .reduce_op = ReduceOp::kAvg}),
            "");
  bool flags[2] = {};
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce,
                       .tensors = {Tensor(flags, {2})},
                       .reduce_op = ReduceOp::kAvg}),
            "argument reduce_op: cannot use ReduceOp.AVG with boolean inputs, "
            "got bool[2]");
  float values[2] = {};
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce,
                       .tensors = {Tensor(values, {2})},
                       .reduce_op = ReduceOp::kBand}),
            "argument reduce_op: cannot use ReduceOp.BAND with non-integral "
            "dtype, got float32[2]");
  int16_t integers[2] = {};
  EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce,
                       .tensors = {Tensor(integers, {2})},
                       .reduce_op = ReduceOp::kPremulSum}),
            "argument reduce_op: cannot use ReduceOp.PREMUL_SUM with integral "
            "dtype, got int16[2]");
}

TEST(CollectiveTest, EveryOperationHasMeaningForTheTypesOfItsClass) {
  using enum ReduceOp;
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto type = static_cast<DataType>(i);
    const bool complex =
        type == DataType::kComplex64 || type == DataType::kComplex128;
    const bool boolean = type == DataType::kBool;
    const bool integral = boolean || i <= static_cast<int>(DataType::kInt64);
    for (const ReduceOp op :
         {kSum, kAvg, kMin, kMax, kProduct, kBand, kBor, kBxor, kPremulSum}) {
      const bool bits = op == kBand || op == kBor || op == kBxor;
      const bool expected = op == kSum         ? true
                            : op == kAvg       ? !boolean
                            : op == kPremulSum ? !integral
                            : bits             ? integral
                                               : !complex;
      double memory[2];
      EXPECT_EQ(ProblemOf({.kind = CollectiveKind::kAllReduce,
                           .tensors = {Tensor(memory, type, {1})},
                           .reduce_op = op})
                    .empty(),
                expected)
          << ReduceOpName(op) << " of " << DataTypeName(type);
    }
  }
}

}  // namespace
}  // namespace muster::dataplane
