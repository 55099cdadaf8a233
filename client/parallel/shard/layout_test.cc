#include "client/parallel/shard/layout.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> RowCounts(int64_t rows, int ranks) {
  const GroupLayout layout({{rows, 3}}, ranks);
  std::vector<int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(layout.parameters[0].RowCount(rank));
  }
  return counts;
}

TEST(GroupLayoutTest, RowsAreThoseOfTorchChunk) {
  EXPECT_THAT(RowCounts(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(RowCounts(7, 4), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(RowCounts(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(RowCounts(1, 4), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(RowCounts(5, 1), ElementsAre(5));
}

TEST(GroupLayoutTest, BlocksHavePaddingAndWholeParametersAreAligned) {
  const GroupLayout layout({{5, 3}, {2}, {4, 2, 2}}, 4);
  EXPECT_EQ(layout.parameters[1].block_offset, 2 * 3);
  EXPECT_EQ(layout.parameters[2].block_offset, 2 * 3 + 1);
  EXPECT_EQ(layout.block_elements, 2 * 3 + 1 + 4);
  EXPECT_EQ(layout.parameters[1].whole_offset, kAlignedElements);
  EXPECT_EQ(layout.parameters[2].whole_offset, 2 * kAlignedElements);
  EXPECT_EQ(layout.whole_elements, 3 * kAlignedElements);
}

TEST(GroupLayoutTest, EveryRowIsOnOneRankInOrder) {
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    const auto rows = static_cast<int64_t>(1 + random() % 20);
    const int ranks = static_cast<int>(1 + random() % 9);
    const GroupLayout layout({{rows, 2}}, ranks);
    const ParameterLayout& parameter = layout.parameters[0];
    int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_EQ(parameter.FirstRow(rank), next);
      ASSERT_GE(parameter.RowCount(rank), 0);
      ASSERT_LE(parameter.RowCount(rank), parameter.rows_per_rank);
      next += parameter.RowCount(rank);
    }
    ASSERT_EQ(next, rows);
  }
}

}  // namespace
}  // namespace muster::internal
