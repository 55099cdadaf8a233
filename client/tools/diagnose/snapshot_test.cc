#include "client/tools/diagnose/snapshot.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A job of 4 ranks, which have all completed #41 of the group "world".
class SnapshotTest : public ::testing::Test {
 protected:
  SnapshotTest() {
    job_.mutable_summary()->set_job("job7");
    job_.mutable_summary()->set_generation(3);
    job_.mutable_summary()->set_generation_running(true);
    job_.mutable_summary()->set_world_size(4);
    job_.mutable_summary()->set_members_alive(4);
    job_.mutable_uptime()->set_seconds(1000);
    for (int rank = 0; rank < 4; ++rank) {
      v1::MemberInfo* member = job_.add_members();
      member->set_member("m" + std::to_string(rank));
      member->set_rank(rank);
      member->set_host("host-" + std::to_string(rank));
      member->set_pid(100 + rank);
      member->set_state(v1::MEMBER_STATE_ALIVE);
      v1::MemberProgress* progress = job_.add_progress();
      progress->mutable_age()->set_seconds(0);
      At(rank, "world", 41);
    }
  }

  // The rank has completed `sequence` and is in no call.
  v1::GroupProgress& At(int rank, const std::string& name, int64_t sequence) {
    v1::MemberProgress& progress = *job_.mutable_progress(rank);
    v1::GroupProgress* group = nullptr;
    for (v1::GroupProgress& one : *progress.mutable_groups()) {
      if (one.group() == name) group = &one;
    }
    if (group == nullptr) group = progress.add_groups();
    group->set_group(name);
    group->set_last_enqueued(sequence);
    group->set_last_completed(sequence);
    return *group;
  }

  void In(int rank, int64_t sequence, int for_seconds) {
    v1::GroupProgress& group = At(rank, "world", sequence - 1);
    group.set_last_enqueued(sequence);
    group.set_current("all_reduce #" + std::to_string(sequence));
    group.mutable_running_for()->set_seconds(for_seconds);
  }

  // A group that forms; its first ranks have registered it.
  v1::RegisteredGroup& Forming(const std::string& name, std::vector<int> ranks,
                               int registered, int for_seconds) {
    v1::RegisteredGroup& group = *job_.add_groups();
    group.set_name(name);
    group.set_registered(registered);
    for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
      group.add_ranks(ranks[static_cast<size_t>(i)]);
      if (i >= registered) group.add_missing(ranks[static_cast<size_t>(i)]);
    }
    group.mutable_forming_for()->set_seconds(for_seconds);
    return group;
  }

  v1::KeyWait& WaitsForKey(const std::string& member, const std::string& key,
                           int for_seconds) {
    v1::KeyWait& wait = *job_.add_key_waits();
    wait.set_member(member);
    wait.set_key(key);
    wait.set_missing(1);
    wait.mutable_waiting_for()->set_seconds(for_seconds);
    return wait;
  }

  v1::OpenBarrier& Barrier(const std::vector<int>& missing, int for_seconds) {
    v1::OpenBarrier& barrier = *job_.add_barriers();
    barrier.set_group("world");
    barrier.set_name("epoch");
    barrier.set_expected(4);
    barrier.set_arrived(4 - static_cast<int>(missing.size()));
    barrier.mutable_open_for()->set_seconds(for_seconds);
    for (const int rank : missing) *barrier.add_missing() = job_.members(rank);
    return barrier;
  }

  Diagnosis Look() const {
    return Diagnose(job_, earlier_.has_value() ? &*earlier_ : nullptr, {});
  }
  // Without the first line.
  std::string Text() const {
    const std::string text = DiagnosisText(job_, Look());
    return text.substr(text.find('\n') + 1);
  }

  v1::GetJobResponse job_;
  std::optional<v1::GetJobResponse> earlier_;
};

TEST_F(SnapshotTest, WhoHasNotCalledNewGroupIsToBlame) {
  Forming("tp0", {0, 2, 3}, 2, 12);
  EXPECT_EQ(Text(),
            "\n"
            "group \"tp0\" is stuck in new_group for 12.0s\n"
            "  rank 3 (host-3, pid 103) is in code of its own: it has not "
            "called new_group; its last in group \"world\", #41, is done\n"
            "  2 ranks wait: 0, 2\n");
  EXPECT_FALSE(Look().healthy());
  EXPECT_THAT(RanksToAsk(job_, nullptr), ElementsAre(3));
}

TEST_F(SnapshotTest, WhoWaitsInNewGroupIsNotToBlameForWhatOthersWaitFor) {
  Forming("world:split:1:0", {0, 3}, 1, 12);
  In(1, 42, 30);
  In(2, 42, 30);
  const Diagnosis diagnosis = Look();
  ASSERT_THAT(diagnosis.groups, SizeIs(2));
  ASSERT_THAT(diagnosis.groups[0].culprits, SizeIs(2));
  EXPECT_EQ(diagnosis.groups[0].culprits[0].state, "new_group");
  EXPECT_EQ(diagnosis.groups[0].culprits[0].what,
            "has not called #42: it waits in split_group for the others of "
            "\"world:split:1:0\"");
  EXPECT_EQ(diagnosis.groups[0].culprits[1].state, "user_code");
  EXPECT_THAT(diagnosis.groups[1].waiting, ElementsAre(0));
}

TEST_F(SnapshotTest, AGroupThatFormsForAMomentIsNotStuck) {
  Forming("tp0", {0, 2, 3}, 2, 4);
  EXPECT_TRUE(Look().healthy());
}

TEST_F(SnapshotTest, AGroupThatOneHasLeftIsNotStuck) {
  Forming("tp0", {0, 2, 3}, 2, 12).clear_forming_for();
  EXPECT_TRUE(Look().healthy());
  // The coordinator has restarted and does not know that all were in it.
  job_.clear_groups();
  Forming("tp0", {0, 2, 3}, 2, 12);
  At(0, "tp0", 7);
  At(2, "tp0", 7);
  EXPECT_TRUE(Look().healthy());
}

TEST_F(SnapshotTest, OfManyThatHaveNotCalledItTheFirstAreNamed) {
  v1::RegisteredGroup& group = Forming("tp0", {0, 1, 2, 3}, 1, 12);
  group.clear_missing();
  group.add_missing(1);
  const Diagnosis diagnosis = Look();
  ASSERT_THAT(diagnosis.groups, SizeIs(1));
  EXPECT_THAT(diagnosis.groups[0].culprits, SizeIs(1));
  EXPECT_EQ(diagnosis.groups[0].note,
            "it waits for 3 of 4 ranks, of whom these are the first");
}

TEST_F(SnapshotTest, WhoHasComeToABarrierIsNotInCodeOfItsOwn) {
  Barrier({1}, 12);
  In(1, 42, 30);
  const Diagnosis diagnosis = Look();
  ASSERT_THAT(diagnosis.groups, SizeIs(2));
  const StuckGroup& group = diagnosis.groups[0];
  EXPECT_EQ(group.collective, "all_reduce #42");
  ASSERT_THAT(group.culprits, SizeIs(3));
  EXPECT_EQ(group.culprits[0].state, "barrier");
  EXPECT_EQ(group.culprits[0].what,
            "has not called #42: it waits in barrier \"epoch\"");
  EXPECT_EQ(diagnosis.groups[1].culprits.at(0).state, "in_collective");
}

TEST_F(SnapshotTest, WhoHasComeToABarrierIsKnownWhereAllMissingAre) {
  v1::OpenBarrier& barrier = Barrier({0}, 12);
  barrier.set_arrived(1);
  In(3, 42, 30);
  // The two other ranks are not known.
  EXPECT_EQ(Look().groups.at(0).culprits.at(1).state, "user_code");
  // Ranks 1 and 2.
  barrier.add_others(1);
  barrier.add_others(2);
  In(2, 42, 30);
  At(3, "world", 41).clear_current();
  const std::vector<Culprit> culprits = Look().groups.at(0).culprits;
  ASSERT_THAT(culprits, SizeIs(3));
  EXPECT_EQ(culprits[1].state, "user_code");
  EXPECT_EQ(culprits[2].rank, 3);
  EXPECT_EQ(culprits[2].state, "barrier");
}

TEST_F(SnapshotTest, WhoWaitsForAKeyIsShown) {
  WaitsForKey("m2", "weights\033", 12).set_missing(3);
  WaitsForKey("m0", "weights\033", 13).set_missing(3);
  WaitsForKey("m1", "jobs", 20).set_item(true);
  EXPECT_EQ(Text(),
            "\n"
            "nobody pushes an item of queue \"jobs\"\n"
            "  rank 1 (host-1, pid 101) has waited for it for 20.0s\n"
            "\n"
            "nobody sets key \"weights\\x1b\" and 2 more\n"
            "  rank 0 (host-0, pid 100) has waited for it for 13.0s\n"
            "  rank 2 (host-2, pid 102) has waited for it for 12.0s\n");
  EXPECT_FALSE(Look().healthy());
  EXPECT_THAT(DiagnosisJson(job_, Look()),
              AllOf(HasSubstr("\"stuck\":true"),
                    HasSubstr("\"key\":\"jobs\",\"queue\":true,\"waiting\":[{"
                              "\"host\":\"host-1\",\"member\":\"m1\",\"pid\":"
                              "101,\"rank\":1,\"waiting_for_ms\":20000}]")));
}

TEST_F(SnapshotTest, AWaitIsNoneThatIsShortOrTheSdksOwn) {
  WaitsForKey("m0", "weights", 4);
  WaitsForKey("m0", "muster/group/world/3/groups/tp0/0", 12);
  WaitsForKey("gone", "weights", 12);
  EXPECT_TRUE(Look().healthy());
}

TEST_F(SnapshotTest, ARankThatGoesOnIsNotHeldByTheWaitOfAThread) {
  WaitsForKey("m0", "stop", 12);
  WaitsForKey("m1", "stop", 12);
  earlier_ = job_;
  At(0, "world", 42);
  const Diagnosis diagnosis = Look();
  ASSERT_THAT(diagnosis.keys, SizeIs(1));
  ASSERT_THAT(diagnosis.keys[0].waiters, SizeIs(1));
  EXPECT_EQ(diagnosis.keys[0].waiters[0].rank, 1);
}

TEST_F(SnapshotTest, WhoWaitsForAKeyKeepsOthersWaitingForThat) {
  for (const int rank : {0, 1, 3}) In(rank, 42, 30);
  WaitsForKey("m2", "weights", 3);
  const Diagnosis diagnosis = Look();
  ASSERT_THAT(diagnosis.groups, SizeIs(1));
  EXPECT_EQ(diagnosis.groups[0].culprits.at(0).state, "store");
  EXPECT_EQ(diagnosis.groups[0].culprits.at(0).what,
            "has not called #42: it waits for key \"weights\" for 3.0s");
}

TEST_F(SnapshotTest, WhoIsMissingInTheRendezvousIsShownAsFarAsItIsKnown) {
  job_.mutable_summary()->set_generation_running(false);
  job_.set_rendezvous_waiting("rendezvous: 2 of 4 ranks joined");
  job_.set_joined(2);
  job_.add_joined_members("m0");
  job_.add_joined_members("m1");
  job_.mutable_members(3)->set_state(v1::MEMBER_STATE_LOST);
  job_.add_missing_ranks(2);
  job_.add_missing_ranks(3);
  job_.add_missing_ranks(5);
  job_.mutable_members(2)->set_silent_ms(1500);
  const DiagnosisOptions options = {.hosts = {{3, "host-3"}}};
  EXPECT_THAT(
      DiagnosisText(job_, Diagnose(job_, nullptr, {}, options)),
      HasSubstr(
          "\nrendezvous: 2 of 4 ranks joined\n"
          "  rank 2 (host-2, pid 102) is connected as member \"m2\" and has "
          "not joined; last heard of 1.5s ago\n"
          "  rank 3 (host-3) has not come again since it was lost: its process "
          "does not run, has not come to InitProcessGroup, or does not reach "
          "the coordinator\n"
          "  rank 5 has never registered: "));
  // While a generation runs, its ranks need not join.
  job_.mutable_summary()->set_generation_running(true);
  EXPECT_THAT(Look().absent, IsEmpty());
}

TEST_F(SnapshotTest, ACoordinatorThatHasForgottenTheJobSaysSo) {
  v1::GetJobResponse job;
  job.mutable_summary()->set_job("job7");
  job.mutable_uptime()->set_seconds(8);
  v1::MemberInfo* member = job.add_members();
  *member = job_.members(1);
  member->set_rank(-1);
  member->set_state(v1::MEMBER_STATE_LEFT);
  member->set_cause("was a member before");
  const Diagnosis diagnosis = Diagnose(job, nullptr, {});
  EXPECT_FALSE(diagnosis.healthy());
  EXPECT_THAT(
      diagnosis.also,
      ElementsAre("nothing is known of this job's ranks and collectives: the "
                  "coordinator was started 8.0s ago, and no generation has "
                  "formed since; what it knew before went with its process; "
                  "these may go on without it: m1 (host-1, pid 101): was a "
                  "member before"));
  job.set_durable(true);
  job.clear_members();
  EXPECT_THAT(Diagnose(job, nullptr, {}).also,
              ElementsAre("nothing is known of this job's ranks and "
                          "collectives: the coordinator was started 8.0s ago, "
                          "and no generation has formed since"));
  // A job of sessions without ranks.
  job.mutable_summary()->set_members_alive(1);
  EXPECT_TRUE(Diagnose(job, nullptr, {}).healthy());
}

TEST_F(SnapshotTest, ACoordinatorThatIsJustBackSaysWhoHasToldNothing) {
  job_.mutable_uptime()->set_seconds(2);
  job_.set_durable(true);
  EXPECT_TRUE(Look().healthy());
  job_.mutable_progress(1)->Clear();
  job_.mutable_progress(3)->Clear();
  EXPECT_THAT(Look().also,
              ElementsAre("the coordinator was started 2.0s ago and has not "
                          "been told yet what ranks 1, 3 do: look again"));
  job_.mutable_uptime()->set_seconds(5);
  EXPECT_TRUE(Look().healthy());
  // This coordinator never knew ranks.
  job_.mutable_uptime()->set_seconds(2);
  job_.set_durable(false);
  EXPECT_TRUE(Look().healthy());
}

TEST_F(SnapshotTest, OfAHealthyJobWhoComesLateIsShown) {
  EXPECT_EQ(Text(), "nothing is stuck\n");
  for (const int rank : {0, 1, 3}) In(rank, 42, 2);
  job_.mutable_progress(2)->mutable_age()->set_nanos(900'000'000);
  EXPECT_EQ(Text(),
            "nothing is stuck\n"
            "slowest in group \"world\": rank 2 (host-2, pid 102); 3 ranks "
            "have waited for it 1.1s in all_reduce #42\n");
  EXPECT_TRUE(Look().healthy());
  // It may have come since its last report, if that is old.
  job_.mutable_progress(2)->mutable_age()->set_seconds(3);
  ASSERT_THAT(Look().stragglers, SizeIs(1));
  EXPECT_EQ(Look().stragglers[0].waiting_for, milliseconds(750));
  for (const int rank : {0, 1, 3}) In(rank, 42, 1);
  EXPECT_EQ(Text(), "nothing is stuck\n");
}

TEST_F(SnapshotTest, WhoCameLateAtTheFirstLookIsShownAtTheSecond) {
  for (const int rank : {0, 1, 3}) In(rank, 42, 2);
  earlier_ = job_;
  for (int rank = 0; rank < 4; ++rank) {
    At(rank, "world", 42).clear_current();
  }
  ASSERT_THAT(Look().stragglers, SizeIs(1));
  EXPECT_EQ(Look().stragglers[0].culprit.rank, 2);
  EXPECT_EQ(Look().stragglers[0].waiting_for, seconds(2));
  EXPECT_THAT(DiagnosisJson(job_, Look()),
              AllOf(HasSubstr("\"stuck\":false"),
                    HasSubstr("\"stragglers\":[{\"collective\":\"all_reduce "
                              "#42\",\"culprit\":{")));
}

TEST_F(SnapshotTest, WhoComesEarlyMakesNoStragglersOfTheOthers) {
  In(0, 42, 2);
  EXPECT_EQ(Text(), "nothing is stuck\n");
}

}  // namespace
}  // namespace muster::tools
