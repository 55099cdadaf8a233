#include "client/parallel/checkpoint/box.h"

#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace muster::internal {
namespace {

TEST(BoxTest, TextHasTheRangeOfEachDimension) {
  EXPECT_EQ(ToText({{0, 8}, {4, 8}}), "[0:4,8:16]");
  EXPECT_EQ(ToText({}), "[]");
}

TEST(BoxTest, BoxesThatTouchHaveNothingInCommon) {
  EXPECT_EQ(Intersect({{0}, {4}}, {{4}, {4}}), std::nullopt);
  EXPECT_EQ(Intersect({{0, 1}, {4, 4}}, {{2, 3}, {9, 9}}),
            (Box{{2, 3}, {2, 2}}));
  EXPECT_EQ(Intersect({}, {}), Box());
}

TEST(BoxTest, FindsTheOnlyOverlapAmongManyColumns) {
  std::vector<Box> columns;
  for (int64_t c = 0; c < 100; ++c) columns.push_back({{0, 5 * c}, {7, 5}});
  EXPECT_EQ(FindOverlap(columns), std::nullopt);
  columns[41].lengths = {1, 6};
  EXPECT_EQ(FindOverlap(columns), (std::pair<size_t, size_t>(41, 42)));
}

TEST(BoxTest, FindsAGapInTheMiddle) {
  const Box whole = MakeWholeBox(std::vector<int64_t>{3, 3});
  const std::vector<Box> frame = {
      {{0, 0}, {1, 3}}, {{2, 0}, {1, 3}}, {{1, 0}, {1, 1}}, {{1, 2}, {1, 1}}};
  EXPECT_EQ(FindGap(whole, frame), (Box{{1, 1}, {1, 1}}));
  std::vector<Box> full = frame;
  full.push_back({{1, 1}, {1, 1}});
  EXPECT_EQ(FindGap(whole, full), std::nullopt);
}

TEST(BoxTest, AScalarWithoutABoxIsAGap) {
  EXPECT_EQ(FindGap({}, {}), Box());
  EXPECT_EQ(FindGap({}, std::vector<Box>{{}}), std::nullopt);
  EXPECT_EQ(FindGap(MakeWholeBox(std::vector<int64_t>{0, 4}), {}),
            std::nullopt);
}

}  // namespace
}  // namespace muster::internal
