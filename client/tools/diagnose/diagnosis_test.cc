#include "client/tools/diagnose/diagnosis.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/collective.h"

namespace muster::tools {
namespace {

using dataplane::CollectiveKind;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A job whose ranks have completed #41 of the group "world".
class DiagnosisTest : public ::testing::Test {
 protected:
  explicit DiagnosisTest(int size = 4) {
    job_.mutable_summary()->set_job("job7");
    job_.mutable_summary()->set_generation(3);
    job_.mutable_summary()->set_generation_running(true);
    job_.mutable_summary()->set_world_size(size);
    job_.mutable_summary()->set_members_alive(size);
    for (int rank = 0; rank < size; ++rank) {
      v1::MemberInfo* member = job_.add_members();
      member->set_rank(rank);
      member->set_host("host-" + std::to_string(rank));
      member->set_pid(100 + rank);
      member->set_state(v1::MEMBER_STATE_ALIVE);
      member->set_silent_ms(1000);
      member->set_debug_address("10.0.0." + std::to_string(rank) + ":9400");
      v1::MemberProgress* progress = job_.add_progress();
      progress->mutable_age()->set_seconds(1);
      Done(rank, "world", 41);
    }
  }

  v1::GroupProgress& GetGroup(int rank, const std::string& name) {
    v1::MemberProgress& progress = *job_.mutable_progress(rank);
    for (v1::GroupProgress& group : *progress.mutable_groups()) {
      if (group.group() == name) return group;
    }
    v1::GroupProgress& group = *progress.add_groups();
    group.set_group(name);
    return group;
  }

  void Done(int rank, const std::string& name, int64_t sequence) {
    v1::GroupProgress& group = GetGroup(rank, name);
    group.set_last_enqueued(sequence);
    group.set_last_completed(sequence);
    group.clear_current();
    group.clear_peer_call();
  }

  // Returns a running call as the data plane describes it.
  static dataplane::Collective MakeCollective(CollectiveKind kind,
                                              int64_t sequence, int peer = 0) {
    static std::vector<float> values(8);
    dataplane::Collective collective;
    collective.kind = kind;
    collective.sequence = static_cast<uint64_t>(sequence);
    collective.tensors = {dataplane::Tensor(values)};
    collective.peer = peer;
    return collective;
  }

  void In(int rank, const std::string& name, int64_t sequence, int for_seconds,
          CollectiveKind kind = CollectiveKind::kAllReduce) {
    v1::GroupProgress& group = GetGroup(rank, name);
    group.set_last_enqueued(sequence);
    group.set_last_completed(sequence - 1);
    const dataplane::Collective collective = MakeCollective(kind, sequence);
    group.set_current(collective.Describe());
    group.set_arguments_hash(dataplane::ArgumentsHash(collective));
    group.clear_peer_call();
    group.mutable_running_for()->set_seconds(for_seconds);
  }

  // Puts a rank into its first send or receive; collectives do not change.
  void InPeerCall(int rank, CollectiveKind kind, int peer, int for_seconds,
                  const std::string& name = "world") {
    v1::GroupProgress& group = GetGroup(rank, name);
    group.set_current(MakeCollective(kind, 1, peer).Describe());
    group.clear_arguments_hash();
    v1::PeerCall& call = *group.mutable_peer_call();
    call.set_sends(kind == CollectiveKind::kSend);
    call.set_number(1);
    call.set_peer(peer);
    group.mutable_running_for()->set_seconds(for_seconds);
  }

  // Sets the time since the rank's last heartbeat.
  void Silent(int rank, int for_seconds) {
    job_.mutable_members(rank)->set_silent_ms(1000 * for_seconds);
    job_.mutable_progress(rank)->mutable_age()->set_seconds(for_seconds);
  }

  // Returns the diagnosis of the only group.
  StuckGroup Look(const Answers& answers = {}) {
    const Diagnosis diagnosis =
        Diagnose(job_, earlier_.has_value() ? &*earlier_ : nullptr, answers);
    EXPECT_THAT(diagnosis.groups, SizeIs(1));
    return diagnosis.groups.empty() ? StuckGroup() : diagnosis.groups[0];
  }

  static std::vector<int> Ranks(const StuckGroup& group) {
    std::vector<int> ranks;
    for (const Culprit& culprit : group.culprits) ranks.push_back(culprit.rank);
    return ranks;
  }

  v1::GetJobResponse job_;
  std::optional<v1::GetJobResponse> earlier_;
};

TEST_F(DiagnosisTest, RanksThatUseTheirGroupsInAnotherOrderAreACycle) {
  Done(0, "b", 6);
  In(0, "a", 3, 20);
  Done(1, "a", 2);
  In(1, "b", 7, 30);
  const Diagnosis diagnosis = Diagnose(job_, nullptr, {});
  EXPECT_THAT(diagnosis.groups, SizeIs(2));
  EXPECT_THAT(
      diagnosis.also,
      ElementsAre("a cycle: rank 0 is in all_reduce #3 float32[8] sum on group "
                  "\"a\" and waits for rank 1, rank 1 is in all_reduce #7 "
                  "float32[8] sum on group \"b\" and waits for rank 0; ranks "
                  "that share several groups must use them in the same order"));
}

TEST_F(DiagnosisTest, ARankThatWaitsForAnotherGroupsStragglerIsInNoCycle) {
  In(0, "a", 3, 20);
  Done(1, "a", 2);
  In(1, "b", 7, 30);
  Done(2, "b", 6);
  EXPECT_THAT(Diagnose(job_, nullptr, {}).also, IsEmpty());
}

TEST_F(DiagnosisTest, NothingIsStuckWhereNobodyWaitsForLong) {
  In(0, "world", 42, 1);
  EXPECT_TRUE(Diagnose(job_, nullptr, {}).healthy());
  EXPECT_EQ(DiagnosisText(job_, Diagnose(job_, nullptr, {})),
            "job job7: generation 3 runs, 4 ranks, 4 members alive\n"
            "nothing is stuck\n");
}

TEST_F(DiagnosisTest, WhoHasNotCalledItIsInUserCode) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30 + rank);
  const StuckGroup group = Look();
  EXPECT_EQ(group.sequence, 42);
  EXPECT_EQ(group.running_for, seconds(34));
  EXPECT_THAT(group.waiting, ElementsAre(0, 1, 3));
  ASSERT_THAT(Ranks(group), ElementsAre(2));
  EXPECT_EQ(group.culprits[0].state, "user_code");
  EXPECT_EQ(DiagnosisText(job_, Diagnose(job_, nullptr, {})),
            "job job7: generation 3 runs, 4 ranks, 4 members alive\n"
            "\n"
            "group \"world\" is stuck in all_reduce #42 float32[8] sum for "
            "34.0s\n"
            "  rank 2 (host-2, pid 102) is in code of its own: it has not "
            "called #42; its last, #41, is done\n"
            "  3 ranks wait: 0, 1, 3\n");
}

TEST_F(DiagnosisTest, WhoMovesIsSlow) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  Done(2, "world", 30);
  earlier_ = job_;
  Done(2, "world", 35);
  const StuckGroup group = Look();
  ASSERT_THAT(Ranks(group), ElementsAre(2));
  EXPECT_EQ(group.culprits[0].state, "slow");
  EXPECT_THAT(group.culprits[0].what, HasSubstr("from #30 to #35"));
}

TEST_F(DiagnosisTest, WhoWaitsInAnotherGroupIsNamedWithIt) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  In(2, "pair", 7, 31, CollectiveKind::kBroadcast);
  In(3, "pair", 7, 1, CollectiveKind::kBroadcast);
  const Diagnosis diagnosis = Diagnose(job_, nullptr, {});
  ASSERT_THAT(diagnosis.groups, SizeIs(2));
  EXPECT_EQ(diagnosis.groups[1].group, "world");
  ASSERT_THAT(Ranks(diagnosis.groups[1]), ElementsAre(2));
  EXPECT_EQ(diagnosis.groups[1].culprits[0].what,
            "has not called #42: it is in broadcast #7 float32[8] root 0 on "
            "group \"pair\" for 32.0s");
}

TEST_F(DiagnosisTest, TheAnswerTellsTheStoppedFromTheDeadAndTheCutOff) {
  for (const int rank : {0, 1, 2, 3}) In(rank, "world", 42, 30);
  Silent(2, 9);
  EXPECT_THAT(RanksToAsk(job_, nullptr), ElementsAre(2));
  const std::vector<std::pair<Answer, std::string>> cases = {
      {Answer::kSilent, "stopped"},
      {Answer::kRefused, "dead"},
      {Answer::kUnreachable, "cut_off"},
      {Answer::kAnswers, "cut_off"}};
  for (const auto& [answer, state] : cases) {
    const StuckGroup group = Look({{2, answer}});
    ASSERT_THAT(Ranks(group), ElementsAre(2));
    EXPECT_EQ(group.culprits[0].state, state);
    EXPECT_THAT(group.culprits[0].what, HasSubstr("9.0s"));
    EXPECT_THAT(group.waiting, ElementsAre(0, 1, 3));
  }
  EXPECT_EQ(Look().culprits[0].state, "silent");
  EXPECT_THAT(Look().culprits[0].what,
              HasSubstr("; it cannot be asked why at 10.0.0.2:9400 from here"));
}

TEST_F(DiagnosisTest, SilenceIsMeasuredByTheLease) {
  for (const int rank : {0, 1, 2, 3}) In(rank, "world", 42, 30);
  Silent(2, 9);
  job_.mutable_lease()->set_seconds(30);
  EXPECT_THAT(Look().culprits, IsEmpty());
  job_.mutable_lease()->set_seconds(15);
  EXPECT_THAT(Ranks(Look()), ElementsAre(2));
}

TEST_F(DiagnosisTest, WhoStoppedInTheMiddleIsFoundByAskingAll) {
  for (const int rank : {0, 1, 2, 3}) In(rank, "world", 42, 30);
  EXPECT_THAT(RanksToAsk(job_, nullptr), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Look().culprits, IsEmpty());
  EXPECT_THAT(Look().note,
              HasSubstr("all ranks are in it, and who can be asked answers"));
  const StuckGroup group = Look({{0, Answer::kAnswers}, {1, Answer::kSilent}});
  ASSERT_THAT(Ranks(group), ElementsAre(1));
  EXPECT_EQ(group.culprits[0].state, "stopped");
}

TEST_F(DiagnosisTest, NobodyIsBlamedBeforeTheHeartbeatsCanHaveToldOfIt) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 6);
  job_.mutable_lease()->set_seconds(60);
  EXPECT_TRUE(Diagnose(job_, nullptr, {}).healthy());
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 7);
  EXPECT_THAT(Ranks(Look()), ElementsAre(2));
}

TEST_F(DiagnosisTest, WhoIsGoneIsNamedWithItsCause) {
  for (const int rank : {0, 1, 2}) In(rank, "world", 42, 30);
  job_.mutable_members(3)->set_state(v1::MEMBER_STATE_LOST);
  job_.mutable_members(3)->set_cause("connection closed\033[2J");
  const StuckGroup group = Look();
  ASSERT_THAT(Ranks(group), ElementsAre(3));
  EXPECT_EQ(group.culprits[0].state, "dead");
  EXPECT_EQ(group.culprits[0].what,
            "is gone: it was lost: connection closed\\x1b[2J");
}

TEST_F(DiagnosisTest, WhoIsLeftInOneThatOthersHaveCompleted) {
  In(0, "world", 43, 29);
  In(1, "world", 42, 30);
  Done(2, "world", 42);
  In(3, "world", 43, 29);
  const StuckGroup group = Look();
  EXPECT_EQ(group.sequence, 42);
  ASSERT_THAT(Ranks(group), ElementsAre(1));
  EXPECT_EQ(group.culprits[0].state, "in_collective");
  EXPECT_THAT(group.waiting, ElementsAre(0, 3));
}

TEST_F(DiagnosisTest, WhoIsSlowComesOutWithAllOthersWhoTellItLater) {
  // In their last reports ranks 0 and 2 waited for rank 1.
  In(0, "world", 42, 3);
  In(2, "world", 42, 3);
  for (const int rank : {0, 2}) {
    Silent(rank, 3);
    job_.mutable_members(rank)->set_silent_ms(0);
  }
  for (const int rank : {1, 3}) {
    Done(rank, "world", 42);
    job_.mutable_progress(rank)->mutable_age()->set_seconds(1);
  }
  EXPECT_TRUE(Diagnose(job_, nullptr, {}).healthy());
  EXPECT_THAT(RanksToAsk(job_, nullptr), IsEmpty());
  // Their reports are newer than rank 1's, which has completed it.
  job_.mutable_progress(0)->mutable_age()->set_seconds(2);
  job_.mutable_progress(1)->mutable_age()->set_seconds(4);
  EXPECT_THAT(Ranks(Look()), ElementsAre(0));
}

TEST_F(DiagnosisTest, RanksThatDoNotAgreeAreShown) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  In(2, "world", 42, 30, CollectiveKind::kBroadcast);
  EXPECT_EQ(Look().note,
            "they do not agree: \"all_reduce #42 float32[8] sum\" on ranks 0, "
            "1, 3; \"broadcast #42 float32[8] root 0\" on rank 2");
}

TEST_F(DiagnosisTest, RanksAgreeByTheirArgumentsWhateverTheTextsSay) {
  for (const int rank : {0, 1, 2, 3}) {
    In(rank, "world", 42, 30);
    GetGroup(rank, "world").set_current("sum on cuda:" + std::to_string(rank));
  }
  EXPECT_THAT(Look().note, HasSubstr("all ranks are in it"));
  for (const int rank : {0, 1, 2, 3}) {
    GetGroup(rank, "world").set_current("sum");
  }
  GetGroup(2, "world").set_arguments_hash(0);
  EXPECT_EQ(Look().note,
            "they do not agree: \"sum\" on ranks 0, 1, 3; \"sum\" on rank 2");
}

TEST_F(DiagnosisTest, WhetherRanksAgreeThatDoNotTellTheirArgumentsIsNotKnown) {
  for (const int rank : {0, 1, 2}) In(rank, "world", 42, 30);
  In(3, "world", 42, 30, CollectiveKind::kBroadcast);
  GetGroup(3, "world").clear_arguments_hash();
  EXPECT_EQ(Look().note,
            "all ranks are in it, and who can be asked answers: the network "
            "between them is slow or cut, or the tensors are large; whether "
            "they agree is not known: rank 3 does not tell with what "
            "arguments");
  // Ranks that send the hash may still disagree.
  In(1, "world", 42, 30, CollectiveKind::kBroadcast);
  EXPECT_EQ(Look().note,
            "they do not agree: \"all_reduce #42 float32[8] sum\" on ranks 0, "
            "2; \"broadcast #42 float32[8] root 0\" on rank 1");
}

TEST_F(DiagnosisTest, ARankThatIsNotInTheGroupYetIsBehind) {
  for (const int rank : {0, 1, 2}) In(rank, "world", 1, 30);
  job_.mutable_progress(3)->clear_groups();
  const StuckGroup group = Look();
  ASSERT_THAT(Ranks(group), ElementsAre(3));
  EXPECT_EQ(group.culprits[0].state, "user_code");
  EXPECT_THAT(group.culprits[0].what,
              HasSubstr("it has completed no collective yet"));
}

TEST_F(DiagnosisTest, WhoDoesNotSendIsNamedNotWhoWaits) {
  InPeerCall(1, CollectiveKind::kRecv, 0, 33);
  const StuckGroup group = Look();
  ASSERT_THAT(Ranks(group), ElementsAre(0));
  EXPECT_EQ(group.culprits[0].state, "user_code");
  EXPECT_THAT(group.waiting, ElementsAre(1));
  EXPECT_THAT(RanksToAsk(job_, nullptr), ElementsAre(0));
  EXPECT_EQ(DiagnosisText(job_, Diagnose(job_, nullptr, {})),
            "job job7: generation 3 runs, 4 ranks, 4 members alive\n"
            "\n"
            "group \"world\" is stuck in recv #1 float32[8] from rank 0 tag 0 "
            "for 34.0s\n"
            "  rank 0 (host-0, pid 100) is in code of its own: it has not sent "
            "what rank 1 waits for; its last, #41, is done\n"
            "  1 rank waits: 1\n");
}

TEST_F(DiagnosisTest, AChainOfReceiversBlamesItsEnd) {
  InPeerCall(3, CollectiveKind::kRecv, 2, 30);
  InPeerCall(2, CollectiveKind::kSend, 1, 40);
  In(1, "pair", 7, 50);
  GetGroup(1, "world");
  const Diagnosis diagnosis = Diagnose(job_, nullptr, {});
  ASSERT_THAT(diagnosis.groups, SizeIs(2));
  const StuckGroup& group = diagnosis.groups[1];
  EXPECT_EQ(group.collective, "send #1 float32[8] to rank 1 tag 0");
  EXPECT_THAT(group.waiting, ElementsAre(2, 3));
  ASSERT_THAT(Ranks(group), ElementsAre(1));
  EXPECT_EQ(group.culprits[0].what,
            "has not received what rank 2 sends: it is in all_reduce #7 "
            "float32[8] sum on group \"pair\" for 51.0s");
}

TEST_F(DiagnosisTest, APeerIsARankOfItsGroup) {
  v1::RegisteredGroup* pair = job_.add_groups();
  pair->set_name("pair");
  pair->add_ranks(1);
  pair->add_ranks(3);
  Done(1, "pair", 5);
  Done(3, "pair", 5);
  InPeerCall(1, CollectiveKind::kRecv, 1, 30, "pair");
  EXPECT_THAT(Ranks(Look()), ElementsAre(3));
}

TEST_F(DiagnosisTest, APeerIsKnownWhateverTheTextSays) {
  InPeerCall(1, CollectiveKind::kRecv, 0, 33);
  GetGroup(1, "world").set_current("exchange");
  EXPECT_THAT(Ranks(Look()), ElementsAre(0));
}

TEST_F(DiagnosisTest, AReceiverAndACollectiveThatWaitForEachOtherAreBothTold) {
  for (const int rank : {0, 2, 3}) In(rank, "world", 42, 30);
  InPeerCall(1, CollectiveKind::kRecv, 0, 31);
  const Diagnosis diagnosis = Diagnose(job_, nullptr, {});
  ASSERT_THAT(diagnosis.groups, SizeIs(2));
  ASSERT_THAT(Ranks(diagnosis.groups[0]), ElementsAre(0));
  EXPECT_EQ(diagnosis.groups[0].culprits[0].state, "in_collective");
  EXPECT_EQ(diagnosis.groups[0].culprits[0].what,
            "has not sent what rank 1 waits for: it is in all_reduce #42 "
            "float32[8] sum for 31.0s");
  ASSERT_THAT(Ranks(diagnosis.groups[1]), ElementsAre(1));
  EXPECT_EQ(diagnosis.groups[1].culprits[0].state, "point_to_point");
  EXPECT_EQ(diagnosis.groups[1].culprits[0].what,
            "has not called #42: it is in recv #1 float32[8] from rank 0 tag 0 "
            "for 32.0s");
}

TEST_F(DiagnosisTest, PeersThatWaitForEachOtherAreShown) {
  InPeerCall(0, CollectiveKind::kRecv, 1, 30);
  InPeerCall(1, CollectiveKind::kRecv, 0, 30);
  const StuckGroup group = Look();
  EXPECT_THAT(group.culprits, IsEmpty());
  EXPECT_EQ(
      group.note,
      "they wait for each other: rank 0 in \"recv #1 float32[8] from rank "
      "1 tag 0\"; rank 1 in \"recv #1 float32[8] from rank 0 tag 0\"");
  EXPECT_THAT(RanksToAsk(job_, nullptr), ElementsAre(0, 1));
  // One of them was stopped in the collective.
  EXPECT_EQ(Look({{0, Answer::kSilent}}).culprits.at(0).state, "stopped");
}

// The text of the call is only for people.
TEST_F(DiagnosisTest, WhomACallWaitsForIsNotReadFromItsText) {
  InPeerCall(0, CollectiveKind::kRecv, 1, 30);
  InPeerCall(1, CollectiveKind::kRecv, 0, 30);
  for (const int rank : {0, 1})
    GetGroup(rank, "world").set_current("a message");
  EXPECT_EQ(Look().note,
            "they wait for each other: rank 0 in \"a message\"; rank 1 in "
            "\"a message\"");
  for (const int rank : {0, 1}) {
    v1::GroupProgress& group = GetGroup(rank, "world");
    group.set_current(
        MakeCollective(CollectiveKind::kRecv, 1, 1 - rank).Describe());
    group.clear_peer_call();
  }
  EXPECT_THAT(Look().note, Not(HasSubstr("they wait for each other")));
}

TEST_F(DiagnosisTest, WhoTakesFromAnybodyBlamesNobody) {
  InPeerCall(2, CollectiveKind::kRecv, dataplane::kAnyPeer, 30);
  EXPECT_THAT(Look().culprits, IsEmpty());
  EXPECT_EQ(Look().note, "it takes what any rank sends, and none does");
}

TEST_F(DiagnosisTest, WhatAStoppedRankLastToldIsNotTakenForToday) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  In(2, "world", 41, 0);
  Silent(2, 240);
  const StuckGroup group = Look({{2, Answer::kSilent}});
  EXPECT_EQ(group.sequence, 42);
  EXPECT_EQ(group.collective, "all_reduce #42 float32[8] sum");
  EXPECT_EQ(group.running_for, seconds(31));
  EXPECT_THAT(group.waiting, ElementsAre(0, 1, 3));
  ASSERT_THAT(Ranks(group), ElementsAre(2));
  EXPECT_THAT(
      group.culprits[0].what,
      HasSubstr("last heard of 240.0s ago, in all_reduce #41 float32[8] sum"));
}

TEST_F(DiagnosisTest, OldProgressOfALivingRankProvesNothing) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  job_.mutable_progress(2)->mutable_age()->set_seconds(20);
  const StuckGroup group = Look();
  ASSERT_THAT(Ranks(group), ElementsAre(2));
  EXPECT_EQ(group.culprits[0].state, "unknown");
  EXPECT_EQ(group.culprits[0].what,
            "has told nothing new for 20.0s, after #41");
}

TEST_F(DiagnosisTest, AfterARestartOfTheCoordinatorNobodyIsBlamedForSilence) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  job_.mutable_progress(2)->Clear();
  earlier_ = job_;
  earlier_->set_coordinator_epoch(1);
  const StuckGroup group = Look();
  ASSERT_THAT(Ranks(group), ElementsAre(2));
  EXPECT_EQ(group.culprits[0].state, "unknown");
  EXPECT_THAT(group.culprits[0].what,
              HasSubstr("the coordinator was restarted a moment ago"));
}

TEST_F(DiagnosisTest, WhoIsNotBackYetAfterARestartIsAsked) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  for (const int rank : {2, 3}) {
    job_.mutable_members(rank)->set_state(v1::MEMBER_STATE_DISCONNECTED);
    job_.mutable_progress(rank)->Clear();
  }
  EXPECT_THAT(RanksToAsk(job_, nullptr), ElementsAre(2, 3));
  const StuckGroup group = Look({{2, Answer::kSilent}, {3, Answer::kAnswers}});
  ASSERT_THAT(Ranks(group), ElementsAre(2, 3));
  EXPECT_EQ(group.culprits[0].state, "stopped");
  EXPECT_THAT(group.culprits[0].what,
              HasSubstr("last heard of 1.0s ago, or not since the coordinator "
                        "was started then"));
  EXPECT_EQ(group.culprits[1].state, "unknown");
}

TEST_F(DiagnosisTest, WhoseConnectionBreaksWhileItAnswersIsNotToBlame) {
  for (const int rank : {0, 1, 2, 3}) In(rank, "world", 42, 30);
  job_.mutable_members(2)->set_state(v1::MEMBER_STATE_DISCONNECTED);
  EXPECT_THAT(Ranks(Look()), ElementsAre(2));
  EXPECT_THAT(Look({{2, Answer::kAnswers}}).culprits, IsEmpty());
}

TEST_F(DiagnosisTest, LooksAtTwoCoordinatorsAreNotCompared) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  earlier_ = job_;
  earlier_->set_coordinator_epoch(1);
  for (v1::GroupProgress& group :
       *earlier_->mutable_progress(2)->mutable_groups()) {
    group.set_last_enqueued(1);
  }
  EXPECT_EQ(Look().culprits.at(0).state, "user_code");
  earlier_->set_coordinator_epoch(0);
  EXPECT_EQ(Look().culprits.at(0).state, "slow");
  earlier_->mutable_summary()->set_generation(2);
  EXPECT_EQ(Look().culprits.at(0).state, "user_code");
}

TEST_F(DiagnosisTest, WhoIsSilentIsToldWhereNobodyWaits) {
  for (int rank = 0; rank < 4; ++rank) {
    In(rank, "world", 42, 0);
    Silent(rank, 30);
  }
  EXPECT_THAT(RanksToAsk(job_, nullptr), ElementsAre(0, 1, 2, 3));
  const Diagnosis diagnosis = Diagnose(job_, nullptr, {{0, Answer::kSilent}});
  EXPECT_FALSE(diagnosis.healthy());
  EXPECT_THAT(diagnosis.groups, IsEmpty());
  ASSERT_THAT(diagnosis.silent, SizeIs(4));
  EXPECT_EQ(diagnosis.silent[0].state, "stopped");
  EXPECT_THAT(DiagnosisText(job_, diagnosis),
              HasSubstr("\nnothing is heard of\n  rank 0 (host-0, pid 100) is "
                        "stopped (SIGSTOP"));
}

TEST_F(DiagnosisTest, WhoHasNotComeToABarrierIsToldAsInACollective) {
  v1::OpenBarrier* barrier = job_.add_barriers();
  barrier->set_group("world");
  barrier->set_name("epoch");
  barrier->set_expected(4);
  barrier->set_arrived(3);
  barrier->mutable_open_for()->set_seconds(12);
  *barrier->add_missing() = job_.members(1);
  EXPECT_EQ(DiagnosisText(job_, Diagnose(job_, nullptr, {})),
            "job job7: generation 3 runs, 4 ranks, 4 members alive\n"
            "\n"
            "group \"world\" is stuck in barrier \"epoch\" for 12.0s\n"
            "  rank 1 (host-1, pid 101) is in code of its own: it has not come "
            "to it; its last, #41, is done\n"
            "  3 ranks wait: 0, 2, 3\n");
  EXPECT_THAT(RanksToAsk(job_, nullptr), ElementsAre(1));
  EXPECT_EQ(Look({{1, Answer::kSilent}}).culprits[0].state, "stopped");
  barrier->mutable_open_for()->set_seconds(4);
  EXPECT_TRUE(Diagnose(job_, nullptr, {}).healthy());
}

TEST_F(DiagnosisTest, ABarrierOfManyNamesTheFirstThatAreMissing) {
  v1::OpenBarrier* barrier = job_.add_barriers();
  barrier->set_group("elsewhere");
  barrier->set_name("epoch");
  barrier->set_expected(300);
  barrier->set_arrived(3);
  barrier->mutable_open_for()->set_seconds(12);
  barrier->add_missing()->set_rank(1);
  const StuckGroup group = Look();
  ASSERT_THAT(Ranks(group), ElementsAre(1));
  EXPECT_EQ(group.culprits[0].state, "unknown");
  EXPECT_THAT(group.waiting, IsEmpty());
  EXPECT_EQ(group.note,
            "it waits for 297 of 300 ranks, of whom these are the first");
}

TEST_F(DiagnosisTest, ARendezvousThatWaitsIsTold) {
  job_.set_rendezvous_waiting("rendezvous: 2 of 3 ranks joined");
  const Diagnosis diagnosis = Diagnose(job_, nullptr, {});
  EXPECT_THAT(diagnosis.also, ElementsAre("rendezvous: 2 of 3 ranks joined"));
  EXPECT_FALSE(diagnosis.healthy());
}

TEST_F(DiagnosisTest, JsonHasTheSame) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  const auto json =
      nlohmann::json::parse(DiagnosisJson(job_, Diagnose(job_, nullptr, {})));
  EXPECT_EQ(json["job"], "job7");
  EXPECT_TRUE(json["stuck"]);
  EXPECT_EQ(json["groups"][0]["sequence"], 42);
  EXPECT_EQ(json["groups"][0]["culprits"][0]["rank"], 2);
  EXPECT_EQ(json["groups"][0]["culprits"][0]["state"], "user_code");
  EXPECT_EQ(json["groups"][0]["waiting"], nlohmann::json({0, 1, 3}));
}

TEST_F(DiagnosisTest, AThousandCulpritsFitTheScreen) {
  for (int i = 4; i < 1000; ++i) {
    *job_.add_members() = job_.members(3);
    job_.mutable_members(i)->set_rank(i);
    *job_.add_progress() = job_.progress(3);
  }
  In(0, "world", 42, 30);
  const std::string text = DiagnosisText(job_, Diagnose(job_, nullptr, {}));
  EXPECT_THAT(text, HasSubstr("and 983 more\n"));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24);
}

// All have a seat, and all but rank 2 are in the call that makes the world.
class ConnectingTest : public DiagnosisTest {
 protected:
  ConnectingTest() {
    for (int rank = 0; rank < 4; ++rank) {
      job_.mutable_progress(rank)->clear_groups();
      if (rank != 2) Connecting(rank);
    }
  }

  void Connecting(int rank) {
    v1::GroupProgress& group = GetGroup(rank, "world");
    group.set_current("init_process_group");
    group.mutable_running_for()->set_seconds(12);
  }
};

TEST_F(ConnectingTest, WhoHasJoinedAndDoesNotComeToConnectIsNamed) {
  const StuckGroup group = Look();
  EXPECT_EQ(group.collective, "init_process_group");
  EXPECT_EQ(group.running_for, seconds(13));
  EXPECT_THAT(group.waiting, ElementsAre(0, 1, 3));
  EXPECT_THAT(Ranks(group), ElementsAre(2));
  EXPECT_EQ(group.culprits[0].what,
            "is in code of its own: it has not come to it; it has completed no "
            "collective yet");
  Silent(2, 8);
  EXPECT_EQ(Look({{2, Answer::kSilent}}).culprits[0].state, "stopped");
}

TEST_F(ConnectingTest, WhereAllHaveComeTheNetworkKeepsThemApart) {
  Connecting(2);
  const StuckGroup group = Look();
  EXPECT_THAT(group.waiting, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(group.culprits, IsEmpty());
  EXPECT_THAT(group.note, HasSubstr("not each other"));
}

TEST_F(ConnectingTest, WhoIsConnectedWaitsForThoseThatAreNot) {
  In(0, "world", 1, 12);
  Done(2, "world", 0);
  const StuckGroup group = Look();
  EXPECT_THAT(group.waiting, ElementsAre(0));
  EXPECT_THAT(Ranks(group), ElementsAre(1, 2, 3));
  EXPECT_EQ(group.culprits[0].state, "connecting");
  EXPECT_THAT(group.culprits[0].what,
              HasSubstr("has not called #1: it is in init_process_group"));
  EXPECT_EQ(group.culprits[1].state, "user_code");
}

}  // namespace
}  // namespace muster::tools
