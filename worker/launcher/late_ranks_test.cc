#include "worker/launcher/late_ranks.h"

#include <chrono>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::worker {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LateRanksTest : public ::testing::Test {
 protected:
  std::vector<int> Told(const std::vector<int>& missing, int at_s) {
    return Ranks(late_.Decide(missing, At(at_s)).tell);
  }
  std::vector<int> Killed(const std::vector<int>& missing, int at_s) {
    return Ranks(late_.Decide(missing, At(at_s)).kill);
  }
  static LateRanks::Instant At(int s) {
    return LateRanks::Instant() + seconds(1000 + s);
  }
  static std::vector<int> Ranks(const std::vector<LateRanks::Late>& late) {
    std::vector<int> ranks;
    for (const LateRanks::Late& each : late) ranks.push_back(each.rank);
    return ranks;
  }

  LateRanks late_{seconds(60)};
};

TEST_F(LateRanksTest, ARankIsToldWhenOthersHaveWaitedAndThenEverMoreSeldom) {
  EXPECT_THAT(Told({2, 3}, 0), IsEmpty());
  EXPECT_THAT(Told({2, 3}, 4), IsEmpty());
  EXPECT_THAT(Told({2, 3}, 5), ElementsAre(2, 3));
  EXPECT_THAT(Told({3}, 14), IsEmpty());
  EXPECT_THAT(Told({3}, 15), ElementsAre(3));
  EXPECT_THAT(Told({3}, 34), IsEmpty());
  EXPECT_THAT(Told({3}, 35), ElementsAre(3));
}

TEST_F(LateRanksTest, WhenAllHaveJoinedTheWaitBeginsAnew) {
  Told({1}, 0);
  EXPECT_THAT(Told({1}, 5), ElementsAre(1));
  EXPECT_THAT(Told({}, 6), IsEmpty());
  EXPECT_THAT(Told({1}, 7), IsEmpty());
  EXPECT_THAT(Told({1}, 12), ElementsAre(1));
}

TEST_F(LateRanksTest, ARankThatOthersWaitForForTheHangTimeoutHangs) {
  EXPECT_THAT(Killed({1, 2}, 0), IsEmpty());
  EXPECT_THAT(Killed({1}, 59), IsEmpty());
  const LateRanks::Decision decision = late_.Decide({1, 2}, At(60));
  EXPECT_THAT(Ranks(decision.kill), ElementsAre(1));
  EXPECT_THAT(decision.tell, IsEmpty());
  EXPECT_EQ(decision.kill[0].waited, seconds(60));
}

TEST_F(LateRanksTest, AProcessThatWasStartedAgainHasTheWholeTime) {
  Told({1}, 0);
  late_.NoteStart(1, At(50));
  EXPECT_THAT(Killed({1}, 109), IsEmpty());
  EXPECT_THAT(Killed({1}, 110), ElementsAre(1));
}

TEST_F(LateRanksTest, WithoutATimeoutNobodyHangs) {
  LateRanks late(seconds(0));
  late.Decide({1}, At(0));
  EXPECT_THAT(late.Decide({1}, At(100000)).kill, IsEmpty());
  late.NoteStart(1, At(0));
  EXPECT_FALSE(late.TellThatNoneCame(At(100000)));
}

TEST_F(LateRanksTest, ThatNoneCameIsToldOnce) {
  late_.NoteStart(0, At(0));
  late_.NoteStart(1, At(2));
  EXPECT_FALSE(late_.TellThatNoneCame(At(6)));
  EXPECT_TRUE(late_.TellThatNoneCame(At(7)));
  EXPECT_FALSE(late_.TellThatNoneCame(At(8)));
}

}  // namespace
}  // namespace muster::worker
