#include "dataplane/cpu/collectives/selection.h"

#include "gtest/gtest.h"

namespace muster::dataplane::cpu {
namespace {

Algorithm SelectAllReduce(size_t bytes, absl::string_view forced = "") {
  return SelectAlgorithm(CollectiveKind::kAllReduce, 4, bytes, forced);
}

TEST(SelectionTest, LargerTensorsTakeMoreSteps) {
  EXPECT_EQ(SelectAllReduce(0), Algorithm::kDoubling);
  EXPECT_EQ(SelectAllReduce(32 << 10), Algorithm::kDoubling);
  EXPECT_EQ(SelectAllReduce((32 << 10) + 1), Algorithm::kPairwise);
  EXPECT_EQ(SelectAllReduce(64 << 20), Algorithm::kRing);
  EXPECT_EQ(SelectAlgorithm(CollectiveKind::kBroadcast, 2, 4, ""),
            Algorithm::kTree);
  EXPECT_EQ(SelectAlgorithm(CollectiveKind::kBroadcast, 64, 64 << 20, ""),
            Algorithm::kChain);
}

TEST(SelectionTest, TheVariableGoesBeforeTheTableWhereItApplies) {
  EXPECT_EQ(SelectAllReduce(4, "ring"), Algorithm::kRing);
  EXPECT_EQ(SelectAllReduce(64 << 20, "doubling"), Algorithm::kDoubling);
  // The name of another collective's algorithm, and an unknown name.
  EXPECT_EQ(SelectAllReduce(4, "chain"), Algorithm::kDoubling);
  EXPECT_EQ(SelectAllReduce(4, "fastest"), Algorithm::kDoubling);
}

TEST(SelectionTest, AVariableThatNamesNoneIsRefused) {
  EXPECT_TRUE(CheckForced("").ok());
  EXPECT_TRUE(CheckForced("chain").ok());
  EXPECT_EQ(CheckForced("fastest"),
            InvalidArgumentError(
                "environment variable MUSTER_GLOO_ALGORITHM: no algorithm "
                "\"fastest\"; there are: doubling, pairwise, ring, tree, "
                "chain"));
}

TEST(SelectionTest, AlgorithmsHaveNames) {
  EXPECT_STREQ(AlgorithmName(Algorithm::kRing), "ring");
  EXPECT_STREQ(AlgorithmName(Algorithm::kTree), "tree");
}

TEST(SelectionTest, LargeMessagesGoThroughGloo) {
  EXPECT_EQ(ChoosePath(CollectiveKind::kAllGather, 2 << 20), Path::kLines);
  EXPECT_EQ(ChoosePath(CollectiveKind::kAllGather, (2 << 20) + 1), Path::kGloo);
  EXPECT_EQ(ChoosePath(CollectiveKind::kBroadcast, 8 << 20), Path::kLines);
}

}  // namespace
}  // namespace muster::dataplane::cpu
