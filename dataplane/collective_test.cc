#include "muster/dataplane/collective.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

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

TEST(CollectiveTest, AStepIsItsName) {
  const Collective step = {.kind = CollectiveKind::kAllGatherIntoTensor,
                           .step = Step::kAllocateSymmetric};
  EXPECT_EQ(step.Label(), "allocate_symmetric");
  EXPECT_EQ(step.Describe(), "allocate_symmetric");
}

TEST(CollectiveTest, DescribesListsByTheirSums) {
  std::vector<float> values(8);
  const Tensor tensor(values);
  EXPECT_EQ((Collective{.kind = CollectiveKind::kGather,
                        .inputs = {tensor},
                        .outputs = {tensor, tensor, tensor},
                        .root = 1,
                        .sequence = 5})
                .Describe(),
            "gather #5 float32[8] to 3 tensors of 24 float32 root 1");
  EXPECT_EQ((Collective{.kind = CollectiveKind::kReduceScatterTensor,
                        .inputs = {tensor},
                        .outputs = {tensor},
                        .reduce_op = ReduceOp::kMax,
                        .sequence = 6})
                .Describe(),
            "reduce_scatter_tensor #6 float32[8] to float32[8] max");
  EXPECT_EQ((Collective{.kind = CollectiveKind::kAllToAllSingle,
                        .inputs = {tensor},
                        .outputs = {tensor},
                        .input_splits = {3, 5},
                        .output_splits = {0, 1, 0, 1, 2, 2, 1, 1, 0},
                        .sequence = 7})
                .Describe(),
            "all_to_all_single #7 float32[8] to float32[8] input_split_sizes "
            "3,5 output_split_sizes 0,1,0,1,2,2,1,1,...");
}

TEST(CollectiveTest, BytesAreThoseOfAllTensors) {
  std::vector<float> a(3);
  std::vector<double> b(2);
  EXPECT_EQ((Collective{.tensors = {Tensor(a), Tensor(b)}}).bytes(), 28u);
  EXPECT_EQ((Collective{.inputs = {Tensor(a)}, .outputs = {Tensor(b)}}).bytes(),
            16u);
}

TEST(CollectiveTest, PartsAreThoseOfAListOrOfOneTensorThatIsCut) {
  std::vector<float> values(12);
  const Tensor rows(values.data(), {6, 2});
  const Tensor row(values.data(), {2});
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(PartCounts({rows, row, row}, {}, 3), (Counts{12, 2, 2}));
  EXPECT_EQ(PartCounts({rows}, {}, 3), (Counts{4, 4, 4}));
  EXPECT_EQ(PartCounts({rows}, {1, 0, 5}, 3), (Counts{2, 0, 10}));
  EXPECT_EQ(PartCounts({Tensor(values.data(), {0, 2})}, {0, 0}, 2),
            (Counts{0, 0}));
}

TEST(CollectiveTest, PartsOfWhatNobodyHasValidatedAreCountedWithoutHarm) {
  std::vector<float> values(12);
  const Tensor scalar(values.data(), {});
  const Tensor rows(values.data(), {6, 2});
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(PartCounts({scalar}, {1, 2}, 2), (Counts{0, 0}));
  EXPECT_EQ(PartCounts({}, {1, 2}, 2), Counts());
  EXPECT_EQ(PartCounts({rows}, {INT64_MAX, 1, -1}, 2), (Counts{-2, 2, -2}));
}

TEST(CollectiveTest, TheRootAloneReadsABroadcastAndWritesAReduce) {
  const auto reads_and_writes = [](CollectiveKind kind, int rank) {
    const Collective collective = {.kind = kind, .root = 1};
    return std::pair(collective.ReadsInPlace(rank),
                     collective.WritesInPlace(rank));
  };
  using enum CollectiveKind;
  EXPECT_EQ(reads_and_writes(kAllReduce, 0), std::pair(true, true));
  EXPECT_EQ(reads_and_writes(kBroadcast, 0), std::pair(false, true));
  EXPECT_EQ(reads_and_writes(kBroadcast, 1), std::pair(true, false));
  EXPECT_EQ(reads_and_writes(kReduce, 0), std::pair(true, false));
  EXPECT_EQ(reads_and_writes(kReduce, 1), std::pair(true, true));
}

}  // namespace
}  // namespace muster::dataplane
