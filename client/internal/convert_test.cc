#include "client/internal/convert.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<std::pair<int, int>> RangesOf(
    const std::vector<uint32_t>& numbers) {
  v1::LeftTogether proto;
  for (const uint32_t number : numbers) proto.add_ranges(number);
  std::vector<std::pair<int, int>> ranges;
  for (const RankRange& range : RangesFrom(proto)) {
    ranges.emplace_back(range.first, range.count);
  }
  return ranges;
}

TEST(ConvertTest, RangesCountFromTheEndOfTheOneBefore) {
  EXPECT_THAT(RangesOf({0, 2, 5, 1}), ElementsAre(Pair(0, 2), Pair(7, 1)));
}

TEST(ConvertTest, RangesThatNobodyCanMeanAreLeftOut) {
  EXPECT_THAT(RangesOf({0, 2, 4294967295, 4294967295}),
              ElementsAre(Pair(0, 2)));
  EXPECT_THAT(RangesOf({3}), IsEmpty());
}

TEST(ConvertTest, AnEventKnowsThatNotAllCulpritsAreListed) {
  v1::MemberEvent proto;
  proto.mutable_culprits()->add_members()->set_rank(3);
  proto.mutable_culprits()->set_omitted(28);
  EXPECT_EQ(FromProto(proto).culprits_omitted, 28);
  proto.mutable_culprits()->set_omitted(-1);
  EXPECT_EQ(FromProto(proto).culprits_omitted, 0);
}

}  // namespace
}  // namespace muster::internal
