#include "client/control/batch_window.h"

#include <chrono>

#include "gtest/gtest.h"

namespace muster::internal {
namespace {

constexpr Instant kNow{std::chrono::seconds(1000)};

TEST(BatchWindowTest, FewCallersAreNotWaitedFor) {
  BatchWindow batch_window;
  EXPECT_FALSE(batch_window.Expects(kNow));
  batch_window.Woke(BatchWindow::kCallersMin - 1, kNow);
  EXPECT_FALSE(batch_window.Expects(kNow));
}

TEST(BatchWindowTest, ManyAreWaitedForUntilAllAreBack) {
  BatchWindow batch_window;
  batch_window.Woke(64, kNow);
  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(batch_window.Expects(kNow)) << i;
    batch_window.CameBack(0, kNow);
  }
  EXPECT_FALSE(batch_window.Expects(kNow));
}

TEST(BatchWindowTest, WhoDoesNotComeBackIsNotWaitedForLong) {
  BatchWindow batch_window;
  batch_window.Woke(10, kNow);
  EXPECT_EQ(batch_window.until(), kNow + 10 * BatchWindow::kPerCaller);
  EXPECT_FALSE(batch_window.Expects(batch_window.until()));
  // It does not begin again.
  EXPECT_FALSE(batch_window.Expects(kNow));
}

TEST(BatchWindowTest, ALatecomerWaitsForThoseWhoAreUnderWay) {
  BatchWindow batch_window;
  batch_window.Woke(8, kNow);
  for (int i = 0; i < 8; ++i) batch_window.CameBack(0, kNow);
  batch_window.CameBack(8, kNow);
  EXPECT_TRUE(batch_window.Expects(kNow));
  EXPECT_FALSE(batch_window.Expects(batch_window.until()));
  batch_window.CameBack(8, kNow);
  batch_window.Woke(8, kNow);
  for (int i = 0; i < 8; ++i) batch_window.CameBack(0, kNow);
  EXPECT_FALSE(batch_window.Expects(kNow));
}

TEST(BatchWindowTest, ACrowdThatIsParkedOrGoneHoldsNobodyUp) {
  BatchWindow batch_window;
  batch_window.Woke(64, kNow);
  Instant now = batch_window.until();
  for (int i = 0; i < 30; ++i) {
    EXPECT_FALSE(batch_window.Expects(now)) << i;
    batch_window.Woke(1, now);
    now = batch_window.until();
  }
  batch_window.CameBack(/*under_way=*/63, now);
  EXPECT_FALSE(batch_window.Expects(now));
}

TEST(BatchWindowTest, NewcomersCountForThoseWhoStayAway) {
  BatchWindow batch_window;
  batch_window.CameBack(0, kNow);
  batch_window.Woke(4, kNow);
  for (int i = 0; i < 5; ++i) batch_window.CameBack(0, kNow);
  EXPECT_FALSE(batch_window.Expects(kNow));
}

}  // namespace
}  // namespace muster::internal
