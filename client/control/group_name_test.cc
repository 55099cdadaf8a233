#include "client/control/group_name.h"

#include "gtest/gtest.h"

namespace muster::internal {
namespace {

TEST(GroupNameTest, SaysHowItsGroupIsMade) {
  const std::string split = NameOfSplit("world", 2, 1);
  const std::string shrunk = NameOfShrunk("world", "2_3");
  EXPECT_EQ(split, "world:split:2:1");
  EXPECT_EQ(shrunk, "world:shrink:2_3");
  EXPECT_EQ(GetMaker(split), "split_group");
  EXPECT_EQ(GetMaker(shrunk), "shrink_group");
  EXPECT_EQ(GetMaker("7"), "new_group");
  EXPECT_EQ(GetMaker("split"), "new_group");
}

TEST(GroupNameTest, OfAGroupMadeOfSuchAGroupTheLastCallCounts) {
  EXPECT_EQ(GetMaker(NameOfSplit(NameOfShrunk("1", "2"), 0, 0)), "split_group");
  EXPECT_EQ(GetMaker(NameOfShrunk(NameOfSplit("1", 0, 0), "2")),
            "shrink_group");
}

}  // namespace
}  // namespace muster::internal
