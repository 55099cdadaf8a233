#include "client/tools/diagnosis.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::tools {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A job whose ranks 0 to size - 1 are in the group "world", each of which has
// completed collective #41.
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

  v1::GroupProgress& GroupOf(int rank, const std::string& name) {
    v1::MemberProgress& progress = *job_.mutable_progress(rank);
    for (v1::GroupProgress& group : *progress.mutable_groups()) {
      if (group.group() == name) return group;
    }
    v1::GroupProgress& group = *progress.add_groups();
    group.set_group(name);
    return group;
  }

  void Done(int rank, const std::string& name, int64_t sequence) {
    v1::GroupProgress& group = GroupOf(rank, name);
    group.set_last_enqueued(sequence);
    group.set_last_completed(sequence);
    group.clear_current();
  }

  void In(int rank, const std::string& name, int64_t sequence, int for_seconds,
          const std::string& what = "all_reduce float32[8] sum") {
    v1::GroupProgress& group = GroupOf(rank, name);
    group.set_last_enqueued(sequence);
    group.set_last_completed(sequence - 1);
    group.set_current("#" + std::to_string(sequence) + " " + what);
    group.mutable_running_for()->set_seconds(for_seconds);
  }

  // The only group's.
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
            "group \"world\" is stuck in #42 all_reduce float32[8] sum for "
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
  In(2, "pair", 7, 31, "broadcast int64[1]");
  In(3, "pair", 7, 1, "broadcast int64[1]");
  const Diagnosis diagnosis = Diagnose(job_, nullptr, {});
  ASSERT_THAT(diagnosis.groups, SizeIs(2));
  EXPECT_EQ(diagnosis.groups[1].group, "world");
  ASSERT_THAT(Ranks(diagnosis.groups[1]), ElementsAre(2));
  EXPECT_EQ(diagnosis.groups[1].culprits[0].what,
            "has not called #42: it is in #7 broadcast int64[1] on group "
            "\"pair\" for 32.0s");
}

TEST_F(DiagnosisTest, TheAnswerTellsTheStoppedFromTheDeadAndTheCutOff) {
  for (const int rank : {0, 1, 2, 3}) In(rank, "world", 42, 30);
  job_.mutable_members(2)->set_silent_ms(9000);
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
}

TEST_F(DiagnosisTest, SilenceIsMeasuredByTheLease) {
  for (const int rank : {0, 1, 2, 3}) In(rank, "world", 42, 30);
  job_.mutable_members(2)->set_silent_ms(9000);
  job_.mutable_lease()->set_seconds(30);
  EXPECT_THAT(Look().culprits, IsEmpty());
  job_.mutable_lease()->set_seconds(15);
  EXPECT_THAT(Ranks(Look()), ElementsAre(2));
}

TEST_F(DiagnosisTest, WhoStoppedInTheMiddleIsFoundByAskingAll) {
  for (const int rank : {0, 1, 2, 3}) In(rank, "world", 42, 30);
  EXPECT_THAT(RanksToAsk(job_, nullptr), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Look().culprits, IsEmpty());
  EXPECT_THAT(Look().note, HasSubstr("all ranks are in it and answer"));
  const StuckGroup group = Look({{0, Answer::kAnswers}, {1, Answer::kSilent}});
  ASSERT_THAT(Ranks(group), ElementsAre(1));
  EXPECT_EQ(group.culprits[0].state, "stopped");
}

TEST_F(DiagnosisTest, WhoIsGoneIsNamedWithItsCause) {
  for (const int rank : {0, 1, 2}) In(rank, "world", 42, 30);
  job_.mutable_members(3)->set_state(v1::MEMBER_STATE_LOST);
  job_.mutable_members(3)->set_cause("connection closed\033[2J");
  const StuckGroup group = Look();
  ASSERT_THAT(Ranks(group), ElementsAre(3));
  EXPECT_EQ(group.culprits[0].state, "dead");
  EXPECT_EQ(group.culprits[0].what,
            "is gone: it was lost: connection closed\\033[2J");
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

TEST_F(DiagnosisTest, RanksThatDoNotAgreeAreShown) {
  for (const int rank : {0, 1, 3}) In(rank, "world", 42, 30);
  In(2, "world", 42, 30, "broadcast float32[8]");
  EXPECT_EQ(Look().note,
            "they do not agree: \"#42 all_reduce float32[8] sum\" on ranks 0, "
            "1, 3; \"#42 broadcast float32[8]\" on rank 2");
}

TEST_F(DiagnosisTest, ARankThatHasSaidNothingIsBehind) {
  for (const int rank : {0, 1, 2}) In(rank, "world", 1, 30);
  job_.mutable_progress(3)->Clear();
  const StuckGroup group = Look();
  ASSERT_THAT(Ranks(group), ElementsAre(3));
  EXPECT_THAT(group.culprits[0].what, HasSubstr("it has completed none yet"));
}

TEST_F(DiagnosisTest, BarriersAndRendezvousThatWaitAreTold) {
  v1::OpenBarrier* barrier = job_.add_barriers();
  barrier->set_group("world");
  barrier->set_name("epoch");
  barrier->set_expected(4);
  barrier->set_arrived(3);
  barrier->mutable_open_for()->set_seconds(12);
  barrier->add_missing()->set_rank(1);
  barrier->mutable_missing(0)->set_host("host-1");
  job_.set_rendezvous_waiting("rendezvous: 2 of 3 ranks joined");
  const Diagnosis diagnosis = Diagnose(job_, nullptr, {});
  EXPECT_THAT(diagnosis.also,
              ElementsAre("barrier \"epoch\" on group \"world\" waits for 1 of "
                          "4 ranks for 12.0s: 1 (host-1)",
                          "rendezvous: 2 of 3 ranks joined"));
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

}  // namespace
}  // namespace muster::tools
