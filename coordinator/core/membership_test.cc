#include "coordinator/core/membership.h"

#include <string>
#include <vector>

#include "coordinator/core/progress.h"
#include "coordinator/core/testing/core_test_util.h"
#include "coordinator/core/total_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MembershipTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(members_.CheckInvariants(), OkStatus());
  }

  Status Register(const std::string& member, uint64_t incarnation,
                  Instant now = t0) {
    return members_
        .Register(From(member, incarnation, 1),
                  {.host = "host-" + member, .pid = 7}, now, departed_, out_)
        .status();
  }

  Status Admit(const std::string& member, uint64_t incarnation, Instant now) {
    return members_.Admit(From(member, incarnation, 1), now, out_).status();
  }

  static std::string Text(const Status& status) { return status.ToString(); }

  // Sends heartbeats from `member` until `end`, as often as a client would.
  void KeepAlive(const std::string& member, Instant begin, Instant end) {
    for (Instant now = begin; now < end; now += 1s) {
      ASSERT_EQ(Admit(member, 1, now), OkStatus());
      members_.Expire(now, departed_, out_);
    }
  }

  Limits limits_;
  Journal journal_{/*on=*/false};
  const MembershipOptions options_{.reconnect_grace = 1s};
  Membership members_{options_, &limits_, &journal_};
  std::vector<Event> departed_;
  Outbox out_;
};

TEST_F(MembershipTest, OnlyRegisteredMembersAreAdmitted) {
  EXPECT_EQ(Text(Admit("b", 1, t0)),
            "FAILED_PRECONDITION: member \"b\" is not registered");
  ASSERT_EQ(Register("b", 1), OkStatus());
  EXPECT_EQ(Admit("b", 1, t0), OkStatus());
}

TEST_F(MembershipTest, ANewIncarnationFencesTheOldOne) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  ASSERT_EQ(Register("b", 2), OkStatus());
  ASSERT_THAT(departed_, SizeIs(1));
  EXPECT_EQ(departed_[0].kind, EventKind::kReplaced);
  EXPECT_EQ(departed_[0].incarnation, Incarnation(1));
  EXPECT_EQ(departed_[0].cause, "replaced by incarnation 2 on host-b, pid 7");
  EXPECT_EQ(Text(Admit("b", 1, t0)),
            "FAILED_PRECONDITION: stale incarnation 1 of member \"b\", current "
            "is 2");
}

TEST_F(MembershipTest, ALateRegistrationOfAnOldIncarnationIsRefused) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  ASSERT_EQ(Register("b", 2), OkStatus());
  EXPECT_EQ(Text(Register("b", 1)),
            "FAILED_PRECONDITION: stale incarnation 1 of member \"b\", current "
            "is 2");
  EXPECT_EQ(Admit("b", 2, t0), OkStatus());
}

TEST_F(MembershipTest, ASilentMemberIsLostWhenItsLeaseEnds) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  EXPECT_EQ(members_.NextDeadline(), t0 + 10s);
  members_.Expire(t0 + 10s - 1ms, departed_, out_);
  EXPECT_THAT(departed_, IsEmpty());
  members_.Expire(t0 + 11s, departed_, out_);
  ASSERT_THAT(departed_, SizeIs(1));
  EXPECT_EQ(departed_[0].kind, EventKind::kLost);
  EXPECT_EQ(departed_[0].host, "host-b");
  EXPECT_EQ(departed_[0].pid, 7);
  EXPECT_EQ(departed_[0].cause, "no heartbeat for 11s (lease 10s)");
  EXPECT_EQ(Text(Admit("b", 1, t0 + 11s)),
            "FAILED_PRECONDITION: member \"b\" (incarnation 1) was lost: no "
            "heartbeat for 11s (lease 10s)");
}

TEST_F(MembershipTest, AnyCallIsASignOfLife) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  KeepAlive("b", t0, t0 + 60s);
  EXPECT_THAT(departed_, IsEmpty());
  EXPECT_EQ(members_.live(), 1);
}

TEST_F(MembershipTest, ALostIncarnationCannotComeBackButANewOneCan) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Expire(t0 + 10s, departed_, out_);
  EXPECT_EQ(Text(Register("b", 1, t0 + 11s)),
            "FAILED_PRECONDITION: member \"b\" (incarnation 1) was lost: no "
            "heartbeat for 10s (lease 10s); register with a new incarnation");
  EXPECT_EQ(Register("b", 2, t0 + 12s), OkStatus());
  // The member was announced as lost, so it is not replaced as well.
  EXPECT_THAT(departed_, SizeIs(1));
}

TEST_F(MembershipTest, AClosedConnectionIsForgivenWithinTheGrace) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Disconnected(MemberId("b"), Incarnation(1), t0, out_);
  EXPECT_EQ(members_.NextDeadline(), t0 + 1s);
  ASSERT_EQ(Register("b", 1, t0 + 900ms), OkStatus());
  members_.Expire(t0 + 1s, departed_, out_);
  EXPECT_THAT(departed_, IsEmpty());
}

TEST_F(MembershipTest, AClosedConnectionMeansLossAfterTheGrace) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Disconnected(MemberId("b"), Incarnation(1), t0, out_);
  members_.Expire(t0 + 1s, departed_, out_);
  ASSERT_THAT(departed_, SizeIs(1));
  EXPECT_EQ(departed_[0].cause, "connection closed, not restored within 1s");
}

TEST_F(MembershipTest, WhoseConnectionWasEndedHereHasALeaseToComeBack) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Disconnected(MemberId("b"), Incarnation(1), t0, out_,
                        Disconnection::kDismissed);
  members_.Expire(t0 + 9s, departed_, out_);
  EXPECT_THAT(departed_, IsEmpty());
  ASSERT_EQ(Register("b", 1, t0 + 9s), OkStatus());
  // The next disconnection is the member's own.
  members_.Disconnected(MemberId("b"), Incarnation(1), t0 + 9s, out_);
  members_.Expire(t0 + 10s, departed_, out_);
  EXPECT_THAT(departed_, SizeIs(1));
}

TEST_F(MembershipTest, WhoseRelayIsGoneHasALeaseToComeBack) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Disconnected(MemberId("b"), Incarnation(1), t0 + 1s, out_,
                        Disconnection::kRelayGone);
  members_.Expire(t0 + 9s, departed_, out_);
  EXPECT_THAT(departed_, IsEmpty());
  members_.Expire(t0 + 10s, departed_, out_);
  ASSERT_THAT(departed_, SizeIs(1));
  EXPECT_EQ(departed_[0].cause,
            "no heartbeat for 10s (lease 10s), since the relay of its host "
            "went away");
}

TEST_F(MembershipTest, TheClosedConnectionOfAnOldIncarnationIsIgnored) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  ASSERT_EQ(Register("b", 2), OkStatus());
  departed_.clear();
  members_.Disconnected(MemberId("b"), Incarnation(1), t0, out_);
  members_.Expire(t0 + 5s, departed_, out_);
  EXPECT_THAT(departed_, IsEmpty());
}

TEST_F(MembershipTest, FailureAndLeaveCarryTheirReason) {
  ASSERT_EQ(Register("a", 1), OkStatus());
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Fail(*members_.Find(MemberId("a")), {.text = "SIGSEGV"}, t0,
                departed_, out_);
  members_.Leave(*members_.Find(MemberId("b")), "done", t0, departed_, out_);
  ASSERT_THAT(departed_, SizeIs(2));
  EXPECT_EQ(departed_[0].kind, EventKind::kFailed);
  EXPECT_EQ(departed_[0].cause, "SIGSEGV");
  EXPECT_EQ(departed_[1].kind, EventKind::kLeft);
  EXPECT_EQ(departed_[1].cause, "done");
  EXPECT_EQ(Text(Admit("b", 1, t0)),
            "FAILED_PRECONDITION: member \"b\" (incarnation 1) left: done");
}

TEST_F(MembershipTest, TheEventShowsWhatTheMemberWasLastDoing) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  ASSERT_EQ(members_.Heartbeat(*members_.Find(MemberId("b")),
                               {{.group = "world",
                                 .last_enqueued = 418,
                                 .last_completed = 417,
                                 .current = "all_reduce float32[1024]",
                                 .current_age = 2s}},
                               t0),
            OkStatus());
  members_.Expire(t0 + 10s, departed_, out_);
  ASSERT_THAT(departed_, SizeIs(1));
  EXPECT_EQ(departed_[0].last_progress,
            "group \"world\": 417 of 418 done, in all_reduce float32[1024] for "
            "12s, told 10s ago");
}

TEST_F(MembershipTest, ACoordinatorThatSleptBlamesNobody) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Expire(t0 + 30s, departed_, out_);
  EXPECT_THAT(departed_, IsEmpty());
  EXPECT_EQ(out_.notices.back().kind, NoticeKind::kLeasesExtended);
  EXPECT_EQ(out_.notices.back().text, "members=1 stalled_for=20s");
  members_.Expire(t0 + 40s, departed_, out_);
  EXPECT_THAT(departed_, SizeIs(1));
}

// The coordinator's network is cut off, not the hosts'.
TEST_F(MembershipTest, HostsThatFallSilentTogetherAreNotLostBeforeOneIsHeard) {
  ASSERT_EQ(Register("a", 1), OkStatus());
  ASSERT_EQ(Register("b", 1, t0 + 3s), OkStatus());
  ASSERT_EQ(Register("c", 1, t0 + 3s), OkStatus());
  for (int second = 10; second <= 60; ++second) {
    members_.Expire(t0 + seconds(second), departed_, out_);
  }
  EXPECT_THAT(departed_, IsEmpty());
  EXPECT_EQ(out_.notices.back().kind, NoticeKind::kHostsSilent);
  EXPECT_EQ(out_.notices.back().text,
            "hosts=3 members=3 heard=0 lost_after=600s");
  // After a silence of 57 s, lost packets may come for as long.
  EXPECT_EQ(Admit("b", 1, t0 + 60s), OkStatus());
  EXPECT_EQ(out_.notices.back().kind, NoticeKind::kHostsHeard);
  EXPECT_EQ(out_.notices.back().text, "members=2 have_still=57s");
  EXPECT_EQ(Admit("c", 1, t0 + 69s), OkStatus());
  for (int second = 69; second < 117; ++second) {
    EXPECT_EQ(Admit("b", 1, t0 + seconds(second)), OkStatus());
    EXPECT_EQ(Admit("c", 1, t0 + seconds(second)), OkStatus());
    members_.Expire(t0 + seconds(second), departed_, out_);
  }
  EXPECT_THAT(departed_, IsEmpty());
  members_.Expire(t0 + 117s, departed_, out_);
  ASSERT_THAT(departed_, SizeIs(1));
  EXPECT_EQ(departed_[0].member, MemberId("a"));
  // The next silence is a new one.
  members_.Expire(t0 + 126s, departed_, out_);
  EXPECT_THAT(departed_, SizeIs(1));
}

TEST_F(MembershipTest, AfterAShortSilenceTheOthersHaveALease) {
  ASSERT_EQ(Register("a", 1), OkStatus());
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Disconnected(MemberId("a"), Incarnation(1), t0 + 6s, out_);
  members_.Expire(t0 + 7s, departed_, out_);
  ASSERT_EQ(Register("a", 1, t0 + 8s), OkStatus());
  EXPECT_EQ(out_.notices.back().text, "members=1 have_still=10s");
}

TEST_F(MembershipTest, AConnectionThatBreaksInTheSilenceIsNoLossEither) {
  ASSERT_EQ(Register("a", 1), OkStatus());
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Disconnected(MemberId("a"), Incarnation(1), t0 + 8s, out_);
  members_.Expire(t0 + 9s, departed_, out_);
  members_.Disconnected(MemberId("b"), Incarnation(1), t0 + 20s, out_);
  members_.Expire(t0 + 21s, departed_, out_);
  EXPECT_THAT(departed_, IsEmpty());
  ASSERT_EQ(Register("a", 1, t0 + 30s), OkStatus());
  ASSERT_EQ(Register("b", 1, t0 + 39s), OkStatus());
  ASSERT_EQ(Admit("a", 1, t0 + 39s), OkStatus());
  // A member whose connection closes now has died.
  members_.Disconnected(MemberId("b"), Incarnation(1), t0 + 39s, out_);
  members_.Expire(t0 + 40s, departed_, out_);
  EXPECT_THAT(departed_, SizeIs(1));
}

// Others have been heard, so the network works, but TCP is slow.
TEST_F(MembershipTest, AConnectionThatBreaksAfterTheSilenceIsALossInALease) {
  for (const char* member : {"a", "b", "c"}) {
    ASSERT_EQ(Register(member, 1), OkStatus());
  }
  members_.Expire(t0 + 10s, departed_, out_);
  ASSERT_EQ(Admit("a", 1, t0 + 100s), OkStatus());
  EXPECT_EQ(out_.notices.back().text, "members=2 have_still=100s");
  members_.Disconnected(MemberId("b"), Incarnation(1), t0 + 101s, out_);
  EXPECT_EQ(members_.NextDeadline(), t0 + 110s);  // of a
  KeepAlive("a", t0 + 100s, t0 + 111s);
  EXPECT_THAT(departed_, IsEmpty());
  members_.Expire(t0 + 111s, departed_, out_);
  ASSERT_THAT(departed_, SizeIs(1));
  EXPECT_EQ(departed_[0].member, MemberId("b"));
  // Not before the end of its lease.
  members_.Disconnected(MemberId("c"), Incarnation(1), t0 + 195s, out_);
  KeepAlive("a", t0 + 111s, t0 + 200s);
  EXPECT_THAT(departed_, SizeIs(1));
  members_.Expire(t0 + 200s, departed_, out_);
  EXPECT_THAT(departed_, SizeIs(2));
}

// Each silence that ends gives more time to members not heard since.
TEST_F(MembershipTest, NoNumberOfSilencesHoldsAMemberForEver) {
  for (const char* member : {"a", "b", "dead"}) {
    ASSERT_EQ(Register(member, 1), OkStatus());
  }
  Instant lost = t0;
  for (int second = 1; second < 1500 && departed_.empty(); ++second) {
    lost = t0 + seconds(second);
    for (const char* member : {"a", "b"}) {
      if (second % 20 != 0) continue;
      ASSERT_EQ(Admit(member, 1, lost), OkStatus());
    }
    members_.Expire(lost, departed_, out_);
  }
  ASSERT_THAT(departed_, SizeIs(1));
  EXPECT_EQ(departed_[0].member, MemberId("dead"));
  EXPECT_EQ(lost, t0 + 10min);
}

TEST_F(MembershipTest, WhenAllWhoWereSilentAreLostNobodyIsToBeHeard) {
  ASSERT_EQ(Register("a", 1), OkStatus());
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Expire(t0 + 10s, departed_, out_);
  EXPECT_EQ(out_.notices.back().kind, NoticeKind::kHostsSilent);
  members_.Expire(t0 + 10min, departed_, out_);
  EXPECT_THAT(departed_, SizeIs(2));
  out_.Clear();
  ASSERT_EQ(Register("c", 1, t0 + 11min), OkStatus());
  ASSERT_EQ(out_.notices.size(), 1u);
  EXPECT_EQ(out_.notices[0].kind, NoticeKind::kMemberRegistered);
}

// The coordinator's network cannot be the reason for this.
TEST_F(MembershipTest, TheOnlySilentHostIsLostAtTheEndOfItsLease) {
  const auto on_one_host = [&](const std::string& member) {
    return members_
        .Register(From(member, 1, 1), {.host = "host-a"}, t0, departed_, out_)
        .status();
  };
  ASSERT_EQ(on_one_host("a"), OkStatus());
  ASSERT_EQ(on_one_host("b"), OkStatus());
  ASSERT_EQ(Register("c", 1), OkStatus());
  KeepAlive("c", t0, t0 + 10s);
  members_.Expire(t0 + 10s, departed_, out_);
  EXPECT_THAT(departed_, SizeIs(2));
}

TEST_F(MembershipTest, HostsThatDieTogetherAreLostInTheEnd) {
  ASSERT_EQ(Register("a", 1), OkStatus());
  ASSERT_EQ(Register("b", 1), OkStatus());
  ASSERT_EQ(Register("c", 1), OkStatus());
  KeepAlive("c", t0, t0 + 40s);
  EXPECT_THAT(departed_, IsEmpty());
  EXPECT_EQ(members_.NextDeadline(), t0 + 40s);
  members_.Expire(t0 + 40s, departed_, out_);
  ASSERT_THAT(departed_, SizeIs(2));
  EXPECT_EQ(departed_[0].cause, "no heartbeat for 40s (lease 10s)");
}

TEST_F(MembershipTest, AJobThatDiedAsAWholeIsLostInTheEnd) {
  ASSERT_EQ(Register("a", 1), OkStatus());
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Expire(t0 + 10s, departed_, out_);
  EXPECT_THAT(departed_, IsEmpty());
  EXPECT_EQ(members_.NextDeadline(), t0 + 10min);
  members_.Expire(t0 + 10min, departed_, out_);
  EXPECT_THAT(departed_, SizeIs(2));
}

// A registration shows that the coordinator can be reached.
TEST_F(MembershipTest, ANewMemberLeavesTheSilentALease) {
  ASSERT_EQ(Register("a", 1), OkStatus());
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Expire(t0 + 10s, departed_, out_);
  ASSERT_EQ(Register("c", 1, t0 + 50s), OkStatus());
  ASSERT_EQ(Admit("c", 1, t0 + 59s), OkStatus());
  members_.Expire(t0 + 60s, departed_, out_);
  EXPECT_THAT(departed_, SizeIs(2));
}

TEST_F(MembershipTest, DepartedMembersAreForgottenAfterTheRetention) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Leave(*members_.Find(MemberId("b")), "", t0, departed_, out_);
  members_.Expire(t0 + 10min - 1ms, departed_, out_);
  EXPECT_NE(members_.Find(MemberId("b")), nullptr);
  members_.Expire(t0 + 10min, departed_, out_);
  EXPECT_EQ(members_.Find(MemberId("b")), nullptr);
  EXPECT_EQ(members_.NextDeadline(), std::nullopt);
}

TEST_F(MembershipTest, RefusesRegistrationsWithoutNameOrIncarnation) {
  EXPECT_EQ(Text(Register("", 1)),
            "INVALID_ARGUMENT: register: the member has no name");
  EXPECT_EQ(Text(Register("b", 0)),
            "INVALID_ARGUMENT: register: member \"b\" has incarnation 0");
  EXPECT_EQ(Text(Register(std::string(257, 'x'), 1)),
            "RESOURCE_EXHAUSTED: limit name_bytes is 256, offered 257 (member "
            "\"" +
                std::string(64, 'x') + "...\")");
}

TEST_F(MembershipTest, AFullTableForgetsTheDepartedFirst) {
  limits_.members = 2;
  ASSERT_EQ(Register("a", 1), OkStatus());
  ASSERT_EQ(Register("b", 1), OkStatus());
  EXPECT_EQ(Text(Register("c", 1)),
            "RESOURCE_EXHAUSTED: limit members is 2, offered 3 (member "
            "\"c\")" +
                LimitAdvice("members"));
  members_.Leave(*members_.Find(MemberId("a")), "", t0, departed_, out_);
  EXPECT_EQ(Register("c", 1), OkStatus());
  EXPECT_EQ(members_.Find(MemberId("a")), nullptr);
}

TEST_F(MembershipTest, TooMuchProgressIsRefusedButCountsAsLife) {
  limits_.progress_groups = 1;
  ASSERT_EQ(Register("b", 1), OkStatus());
  Member* member = *members_.Admit(From("b", 1, 1), t0 + 9s, out_);
  EXPECT_EQ(Text(members_.Heartbeat(*member, {{}, {}}, t0 + 9s)),
            "RESOURCE_EXHAUSTED: limit progress_groups is 1, offered 2 (member "
            "\"b\")");
  members_.Expire(t0 + 10s, departed_, out_);
  EXPECT_THAT(departed_, IsEmpty());
}

TEST_F(MembershipTest, LongTextsAreCutNotRefused) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Fail(*members_.Find(MemberId("b")), {.text = std::string(5000, 'x')},
                t0, departed_, out_);
  EXPECT_THAT(departed_[0].cause, SizeIs(4096));
}

TEST_F(MembershipTest, ATextIsNotCutWithinACharacter) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  members_.Fail(*members_.Find(MemberId("b")),
                {.text = std::string(4095, 'x') + "\xC3\xA9"}, t0, departed_,
                out_);
  EXPECT_EQ(departed_[0].cause, std::string(4095, 'x'));
}

TEST_F(MembershipTest, ProgressThatCannotBeIsRefusedAndKeepsTheMemberAlive) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  Member& member = *members_.Find(MemberId("b"));
  members_.Disconnected(MemberId("b"), Incarnation(1), t0, out_);
  EXPECT_EQ(Text(members_.Heartbeat(member, {{.last_enqueued = -5}}, t0)),
            "INVALID_ARGUMENT: heartbeat: groups.last_enqueued is -5, must not "
            "be negative");
  EXPECT_EQ(Text(members_.Heartbeat(member, {{.last_completed = -1}}, t0)),
            "INVALID_ARGUMENT: heartbeat: groups.last_completed is -1, must "
            "not be negative");
  EXPECT_EQ(Text(members_.Heartbeat(member, {{.current_age = -5ns}}, t0)),
            "INVALID_ARGUMENT: heartbeat: groups.running_for is -5ns, must not "
            "be negative");
  EXPECT_EQ(member.state, MemberState::kAlive);
  EXPECT_TRUE(member.progress.empty());
}

TEST_F(MembershipTest, TheLogHasTheBeginningOfACauseAndTheEventTheWhole) {
  ASSERT_EQ(Register("b", 1), OkStatus());
  out_.Clear();
  members_.Fail(*members_.Find(MemberId("b")), {.text = std::string(4096, 1)},
                t0, departed_, out_);
  EXPECT_EQ(departed_[0].cause, std::string(4096, 1));
  ASSERT_EQ(out_.notices.size(), 1u);
  EXPECT_LT(out_.notices[0].text.size(), 1100u);
}

TEST_F(MembershipTest, NamesWithControlCharactersAreRefused) {
  EXPECT_EQ(
      Text(Register("b\n", 1)),
      "INVALID_ARGUMENT: register: member \"b\\n\" has a control character");
  std::vector<Event> departed;
  EXPECT_EQ(Text(members_
                     .Register(From("b", 1, 1), {.host = "h\x1b[2J"}, t0,
                               departed, out_)
                     .status()),
            "INVALID_ARGUMENT: register: host \"h\\x1b[2J\" has a control "
            "character");
}

std::vector<GroupProgress> MakeProgress(int groups) {
  std::vector<GroupProgress> progress(groups);
  for (int i = 0; i < groups; ++i) {
    progress[i].group = std::string(250, 'g');
    progress[i].current = "step " + std::to_string(i);
    progress[i].current_age = std::chrono::seconds(i);
  }
  return progress;
}

TEST(MembershipMemoryTest, ProgressIsOfTheJobsMemoryUntilTheMemberIsForgotten) {
  TotalMemory total(1 << 20);
  MemoryShare share(&total);
  Limits limits;
  limits.memory = &share;
  Journal journal(false);
  Membership members(MembershipOptions(), &limits, &journal);
  std::vector<Event> departed;
  Outbox out;
  Member* member =
      *members.Register(From("a", 1, 1), {.host = "h"}, t0, departed, out);
  ASSERT_TRUE(members.Heartbeat(*member, MakeProgress(200), t0).ok());
  EXPECT_EQ(share.held(), kMemberMemory + CountBytes(MakeProgress(200)));
  ASSERT_TRUE(members.Heartbeat(*member, MakeProgress(3), t0).ok());
  EXPECT_EQ(share.held(), kMemberMemory + CountBytes(MakeProgress(3)));
  for (Instant now = t0; now < t0 + 15min; now += 1s) {
    members.Expire(now, departed, out);
  }
  EXPECT_EQ(members.Find(MemberId("a")), nullptr);
  EXPECT_EQ(share.held(), 0);
}

TEST(MembershipMemoryTest, WithoutRoomForItsProgressTheLongestIsKept) {
  TotalMemory total(200000);
  MemoryShare share(&total);
  Limits limits;
  limits.memory = &share;
  Journal journal(false);
  Membership members(MembershipOptions(), &limits, &journal);
  std::vector<Event> departed;
  Outbox out;
  Member* member =
      *members.Register(From("a", 1, 1), {.host = "h"}, t0, departed, out);
  share.Add(150000);
  ASSERT_TRUE(members.Heartbeat(*member, MakeProgress(200), t0).ok());
  ASSERT_EQ(member->progress.size(), 1u);
  EXPECT_EQ(member->progress[0].current, "step 199");
  // A short list is accepted however full the memory is.
  ASSERT_TRUE(members.Heartbeat(*member, MakeProgress(3), t0).ok());
  EXPECT_EQ(member->progress.size(), 3u);
}

}  // namespace
}  // namespace muster::coordinator::core
