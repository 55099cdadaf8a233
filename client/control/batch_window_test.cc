#include "client/control/batch_window.h"

#include <chrono>

#include "gtest/gtest.h"

namespace muster::internal {
namespace {

constexpr Instant kNow{std::chrono::seconds(1000)};

TEST(GatheringTest, FewCallersAreNotWaitedFor) {
  Gathering gathering;
  EXPECT_FALSE(gathering.Expects(kNow));
  gathering.Woke(Gathering::kCallersMin - 1, kNow);
  EXPECT_FALSE(gathering.Expects(kNow));
}

TEST(GatheringTest, ManyAreWaitedForUntilAllAreBack) {
  Gathering gathering;
  gathering.Woke(64, kNow);
  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(gathering.Expects(kNow)) << i;
    gathering.CameBack(0, kNow);
  }
  EXPECT_FALSE(gathering.Expects(kNow));
}

TEST(GatheringTest, WhoDoesNotComeBackIsNotWaitedForLong) {
  Gathering gathering;
  gathering.Woke(10, kNow);
  EXPECT_EQ(gathering.until(), kNow + 10 * Gathering::kPerCaller);
  EXPECT_FALSE(gathering.Expects(gathering.until()));
  // It was given up for good.
  EXPECT_FALSE(gathering.Expects(kNow));
}

TEST(GatheringTest, ALatecomerWaitsForThoseWhoAreUnderWay) {
  Gathering gathering;
  gathering.Woke(8, kNow);
  for (int i = 0; i < 8; ++i) gathering.CameBack(0, kNow);
  gathering.CameBack(8, kNow);
  EXPECT_TRUE(gathering.Expects(kNow));
  EXPECT_FALSE(gathering.Expects(gathering.until()));
  gathering.CameBack(8, kNow);
  gathering.Woke(8, kNow);
  for (int i = 0; i < 8; ++i) gathering.CameBack(0, kNow);
  EXPECT_FALSE(gathering.Expects(kNow));
}

TEST(GatheringTest, ACrowdThatIsParkedOrGoneHoldsNobodyUp) {
  Gathering gathering;
  gathering.Woke(64, kNow);
  Instant now = gathering.until();
  for (int i = 0; i < 30; ++i) {
    EXPECT_FALSE(gathering.Expects(now)) << i;
    gathering.Woke(1, now);
    now = gathering.until();
  }
  gathering.CameBack(/*under_way=*/63, now);
  EXPECT_FALSE(gathering.Expects(now));
}

TEST(GatheringTest, NewcomersCountForThoseWhoStayAway) {
  Gathering gathering;
  gathering.CameBack(0, kNow);
  gathering.Woke(4, kNow);
  for (int i = 0; i < 5; ++i) gathering.CameBack(0, kNow);
  EXPECT_FALSE(gathering.Expects(kNow));
}

}  // namespace
}  // namespace muster::internal
