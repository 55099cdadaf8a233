#include "coordinator/core/rank_ranges.h"

#include <vector>

#include "coordinator/core/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RankRanges Of(const std::vector<int32_t>& values) {
  std::vector<Rank> ranks;
  for (const int32_t value : values) ranks.emplace_back(value);
  return ToRanges(ranks);
}

TEST(RankRangesTest, CountFromTheEndOfTheOneBefore) {
  EXPECT_THAT(Of({}), IsEmpty());
  EXPECT_THAT(Of({0, 1, 7}), ElementsAre(0u, 2u, 5u, 1u));
  EXPECT_THAT(Of({4}), ElementsAre(4u, 1u));
}

TEST(RankRangesTest, ForEachRankIsTheWayBack) {
  for (const std::vector<int32_t>& values :
       {std::vector<int32_t>{}, {0}, {3, 4, 5}, {0, 2, 4, 5, 9}}) {
    std::vector<int32_t> back;
    ForEachRank(Of(values), [&](Rank rank) { back.push_back(rank.value()); });
    EXPECT_EQ(back, values);
  }
}

TEST(RankRangesTest, TextNamesEndsAndStopsAtTheMost) {
  EXPECT_EQ(RangesText(Of({}), 8), "");
  EXPECT_EQ(RangesText(Of({0, 1, 2, 6, 8, 9}), 8), "0-2, 6, 8-9");
  EXPECT_EQ(RangesText(Of({0, 1, 2, 6, 8, 9}), 3), "0-2, 6, 8-9");
  EXPECT_EQ(RangesText(Of({0, 1, 2, 6, 8, 9}), 2), "0-2, 6, ...");
}

}  // namespace
}  // namespace muster::coordinator::core
