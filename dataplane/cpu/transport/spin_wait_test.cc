#include "dataplane/cpu/transport/spin_wait.h"

#include <algorithm>
#include <chrono>

#include "gtest/gtest.h"

namespace muster::dataplane::cpu {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr microseconds kSoon{300};

class SpinBudgetTest : public ::testing::Test {
 protected:
  void Sleep(nanoseconds waited) {
    time_.HasSlept(now_, now_ + waited);
    now_ += waited;
  }
  void See(nanoseconds waited) {
    time_.HasSeen(now_, now_ + waited);
    now_ += waited;
  }
  // The number of waits of this length until the budget is long, or until it is
  // given up.
  int SleepUntilLong(nanoseconds waited) {
    int sleeps = 0;
    for (; !time_.is_long(); ++sleeps) Sleep(waited);
    return sleeps;
  }
  int SeeUntilGivenUp(nanoseconds waited) {
    int spins = 0;
    for (; time_.is_long(); ++spins) See(waited);
    return spins;
  }

  SpinBudget time_;
  SpinBudget::Clock::time_point now_ = SpinBudget::Clock::now();
};

TEST_F(SpinBudgetTest, AtFirstAsLongAsWakingUpTakes) {
  EXPECT_EQ(time_.value(), kSpinTime);
  EXPECT_FALSE(time_.is_long());
}

TEST_F(SpinBudgetTest, WhatCameSoonAfterAllIsLookedForTwiceAsLong) {
  Sleep(microseconds(130));
  EXPECT_EQ(time_.value(), microseconds(260));
  Sleep(microseconds(400));
  EXPECT_EQ(time_.value(), microseconds(800));
  // Never longer than kMost.
  Sleep(microseconds(1'900));
  EXPECT_EQ(time_.value(), SpinBudget::kMost);
  Sleep(SpinBudget::kMost);
  EXPECT_EQ(time_.value(), SpinBudget::kMost);
}

TEST_F(SpinBudgetTest, NothingIsLearntFromWhatCameLate) {
  Sleep(SpinBudget::kMost + microseconds(1));
  EXPECT_EQ(time_.value(), kSpinTime);
  EXPECT_EQ(SleepUntilLong(kSoon), 1);
  EXPECT_EQ(time_.value(), 2 * kSoon);
}

TEST_F(SpinBudgetTest, NeverForLessThanAtFirst) {
  Sleep(microseconds(1));
  EXPECT_EQ(time_.value(), kSpinTime);
}

TEST_F(SpinBudgetTest, WhoIsLateAgainAndAgainIsNotLookedFor) {
  EXPECT_EQ(SleepUntilLong(kSoon), 1);
  EXPECT_EQ(SeeUntilGivenUp(kSoon), SpinBudget::kLongSpinsMax);
  EXPECT_EQ(time_.value(), kSpinTime);
  // The budget grows again, later each time.
  int ignored = SpinBudget::kIgnoredMin;
  for (int again = 0; again < 12; ++again) {
    EXPECT_EQ(SleepUntilLong(kSoon), ignored + 1);
    EXPECT_EQ(SeeUntilGivenUp(kSoon), SpinBudget::kLongSpinsMax);
    ignored = std::min(2 * ignored, SpinBudget::kIgnoredMax);
  }
  EXPECT_EQ(ignored, SpinBudget::kIgnoredMax);
}

TEST_F(SpinBudgetTest, ALongSleepAfterALongLookIsEnough) {
  EXPECT_EQ(SleepUntilLong(kSoon), 1);
  Sleep(seconds(1000));
  EXPECT_EQ(time_.value(), kSpinTime);
  EXPECT_EQ(SleepUntilLong(kSoon), SpinBudget::kIgnoredMin + 1);
}

TEST_F(SpinBudgetTest, SleepsAfterLongLooksCountAsThose) {
  int sleeps = 0;
  for (bool was_long = false; time_.is_long() || !was_long; ++sleeps) {
    Sleep(kSoon);
    was_long = was_long || time_.is_long();
  }
  EXPECT_EQ(sleeps, 1 + SpinBudget::kLongSpinsMax);
}

// Short spins are normal after a chain of sleeps has ended.
TEST_F(SpinBudgetTest, ShortLooksDoNotCount) {
  Sleep(kSoon);
  for (int look = 0; look < 10'000; ++look) See(kSpinTime);
  EXPECT_EQ(time_.value(), 2 * kSoon);
}

TEST_F(SpinBudgetTest, ALongLookNowAndThenIsNoReason) {
  // The budget was given up before.
  for (int time = 0; time < 3; ++time) {
    SleepUntilLong(kSoon);
    SeeUntilGivenUp(kSoon);
  }
  SleepUntilLong(kSoon);
  for (int look = 0; look < 100; ++look) {
    See(kSoon);
    now_ += milliseconds(SpinBudget::kPeriod) / (SpinBudget::kLongSpinsMax / 2);
  }
  EXPECT_EQ(time_.value(), 2 * kSoon);
  // The earlier times are forgotten.
  SeeUntilGivenUp(kSoon);
  EXPECT_EQ(SleepUntilLong(kSoon), SpinBudget::kIgnoredMin + 1);
}

class YieldingTest : public ::testing::Test {
 protected:
  // Whether a thread yields again `later` after a yield that took `took`.
  bool YieldsAfter(nanoseconds took, nanoseconds later) {
    Yielding yielding;
    EXPECT_FALSE(yielding.is_paused(now_));
    yielding.HasYielded(now_, now_ + took);
    return !yielding.is_paused(now_ + took + later);
  }

  const Yielding::Clock::time_point now_ = Yielding::Clock::now();
};

TEST_F(YieldingTest, ToThoseWhoGiveItBackSoonAThreadYieldsAgain) {
  EXPECT_TRUE(YieldsAfter(Yielding::kLong - nanoseconds(1), nanoseconds(0)));
}

TEST_F(YieldingTest, AfterALongOneItDoesNotForSeveralTimesAsLong) {
  for (const nanoseconds took :
       {nanoseconds(Yielding::kLong), nanoseconds(10 * Yielding::kLong)}) {
    const nanoseconds pause = Yielding::kPauseFactor * took;
    EXPECT_FALSE(YieldsAfter(took, nanoseconds(0)));
    EXPECT_FALSE(YieldsAfter(took, pause - nanoseconds(1)));
    EXPECT_TRUE(YieldsAfter(took, pause));
  }
}

TEST_F(YieldingTest, GivesWayByTheYieldThatItHas) {
  static int yields;
  yields = 0;
  Yielding yielding([] { return ++yields; });
  // This yield began long ago.
  EXPECT_GE(yielding.GiveWay(now_ - Yielding::kLong), now_);
  EXPECT_EQ(yields, 1);
  EXPECT_GE(yielding.GiveWay(now_), now_);
  EXPECT_EQ(yields, 1);
}

}  // namespace
}  // namespace muster::dataplane::cpu
