#include "worker/launcher/hang_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace muster::worker {
namespace {

using internal::HostMember;
using internal::HostMembers;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using State = HostMember::State;

constexpr seconds kLease(2);

class HangDetectorTest : public ::testing::Test {
 protected:
  // Time passes, and then the coordinator answers at once.
  std::vector<pid_t> After(milliseconds time, std::vector<HostMember> members) {
    now_ += time;
    std::vector<pid_t> pids;
    for (const HangDetector::Lost& lost :
         detector_.Decide({std::move(members), kLease}, now_, now_)) {
      pids.push_back(lost.pid);
      cause_ = lost.cause;
    }
    return pids;
  }

  // The same answer every half second. Departed members stay silent.
  std::vector<pid_t> During(milliseconds time,
                            std::vector<HostMember> members) {
    std::vector<pid_t> all;
    for (milliseconds past(0); past < time; past += milliseconds(500)) {
      for (HostMember& member : members) {
        if (member.state == State::kLive) continue;
        member.silent_for += milliseconds(500);
      }
      for (const pid_t pid : After(milliseconds(500), members)) {
        all.push_back(pid);
      }
    }
    return all;
  }

  static HostMember Member(int64_t pid, State state, milliseconds silent_for,
                           uint64_t incarnation) {
    return {.pid = pid,
            .incarnation = incarnation,
            .state = state,
            .silent_for = silent_for,
            .cause = "silent"};
  }

  static HostMember Aged(HostMember member) {
    member.silent_for += std::chrono::minutes(1);
    return member;
  }

  HangDetector::Instant now_{std::chrono::hours(1)};
  HangDetector detector_{now_};
  std::string cause_;
};

// The coordinator was out of reach from the start.
TEST_F(HangDetectorTest, WhoWasHeardOfSinceTheStartMayHangAtTheFirstAnswer) {
  const HostMember lost = Member(7, State::kLost, seconds(3), 1);
  EXPECT_THAT(After(seconds(4), {lost}), ElementsAre());
  EXPECT_THAT(During(kLease + HangDetector::kReturnTime, {lost}),
              ElementsAre(7));
}

TEST_F(HangDetectorTest, WhoFallsSilentAloneHangsAndIsToldOnce) {
  const HostMember other = Member(8, State::kLive, milliseconds(0), 2);
  EXPECT_THAT(
      During(seconds(5), {Member(7, State::kLive, milliseconds(0), 1), other}),
      ElementsAre());
  const HostMember lost = Member(7, State::kLost, kLease, 1);
  EXPECT_THAT(After(milliseconds(500), {lost, other}), ElementsAre(7));
  EXPECT_EQ(cause_, "silent");
  EXPECT_THAT(After(milliseconds(500), {lost, other}), ElementsAre());
}

TEST_F(HangDetectorTest, WhoWasGoneBeforeIsNobodyOfNow) {
  EXPECT_THAT(During(seconds(60), {Member(7, State::kLost, kLease, 1)}),
              ElementsAre());
  // A process may reuse the pid of an earlier one.
  EXPECT_THAT(After(milliseconds(500), {Member(7, State::kLost, kLease, 1),
                                        Member(7, State::kLost, kLease, 2)}),
              ElementsAre(7));
}

TEST_F(HangDetectorTest, AfterACutWhoIsLostMayComeBackForAWhile) {
  After(seconds(0), {Member(7, State::kLive, milliseconds(0), 1),
                     Member(8, State::kLive, milliseconds(0), 2)});
  detector_.NoAnswer();
  const HostMember seven = Member(7, State::kLost, seconds(5), 1);
  const HostMember eight = Member(8, State::kLost, seconds(5), 2);
  EXPECT_THAT(After(seconds(5), {seven, eight}), ElementsAre());
  const HostMember again = Member(7, State::kLive, milliseconds(0), 3);
  EXPECT_THAT(During(kLease + HangDetector::kReturnTime - seconds(1),
                     {seven, eight, again}),
              ElementsAre());
  EXPECT_THAT(During(seconds(2), {Aged(seven), Aged(eight), again}),
              ElementsAre(8));
}

TEST_F(HangDetectorTest, WhoWasStoppedItselfGivesTheOthersTime) {
  After(seconds(0), {Member(7, State::kLive, milliseconds(0), 1)});
  const HostMember lost = Member(7, State::kLost, seconds(2), 1);
  EXPECT_THAT(After(seconds(2), {lost}), ElementsAre());
  EXPECT_THAT(During(kLease + HangDetector::kReturnTime, {lost}),
              ElementsAre(7));
}

TEST_F(HangDetectorTest, SilenceInWhichAllMayHaveBeenLostIsACut) {
  const milliseconds shorter = milliseconds(kLease) / 2;
  const milliseconds longer = milliseconds(kLease) * 3 / 4;
  EXPECT_FALSE(detector_.WasCutOff(now_ + seconds(60)));
  After(seconds(0), {});
  EXPECT_FALSE(detector_.WasCutOff(now_ + shorter));
  EXPECT_TRUE(detector_.WasCutOff(now_ + longer));
  After(shorter, {});
  EXPECT_FALSE(detector_.WasCutOff(now_));
  After(longer, {});
  // A host that reconnects learns it a while later.
  EXPECT_TRUE(detector_.WasCutOff(now_));
  During(kLease + HangDetector::kReturnTime, {});
  EXPECT_FALSE(detector_.WasCutOff(now_));
}

TEST_F(HangDetectorTest, OfACutTheLeaseMayBeKnownAtItsEndAlone) {
  EXPECT_FALSE(detector_.IsOutOfTouch(now_ + seconds(60)));
  detector_.Decide(HostMembers(), now_, now_);
  now_ += kLease;
  EXPECT_FALSE(detector_.WasCutOff(now_));
  EXPECT_FALSE(detector_.IsOutOfTouch(now_));
  now_ += milliseconds(1);
  EXPECT_TRUE(detector_.IsOutOfTouch(now_));
  After(seconds(0), {});
  EXPECT_FALSE(detector_.IsOutOfTouch(now_));
  EXPECT_TRUE(detector_.WasCutOff(now_));
}

TEST_F(HangDetectorTest, WhoLeftAsTheLastThingItDidDoesNotHang) {
  After(seconds(0), {Member(7, State::kLive, milliseconds(0), 1)});
  EXPECT_THAT(During(seconds(60), {Member(7, State::kLost, seconds(5), 1),
                                   Member(7, State::kGone, seconds(1), 2)}),
              ElementsAre());
}

TEST_F(HangDetectorTest, WhoLeftAndCameBackAndIsLostHangs) {
  After(seconds(0), {Member(7, State::kLive, milliseconds(0), 1)});
  After(milliseconds(500), {Member(7, State::kGone, milliseconds(100), 1),
                            Member(7, State::kLive, milliseconds(0), 2)});
  EXPECT_THAT(During(seconds(1), {Member(7, State::kGone, seconds(1), 1),
                                  Member(7, State::kLive, seconds(1), 2)}),
              ElementsAre());
  // After the coordinator's restart both have the same age.
  EXPECT_THAT(
      After(milliseconds(500), {Member(7, State::kGone, seconds(0), 1),
                                Member(7, State::kLost, seconds(0), 2)}),
      ElementsAre(7));
}

TEST_F(HangDetectorTest, WithoutAJobNobodyHangs) {
  EXPECT_TRUE(detector_.Decide(HostMembers(), now_, now_).empty());
}

}  // namespace
}  // namespace muster::worker
