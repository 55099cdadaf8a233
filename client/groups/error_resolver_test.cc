#include "client/groups/error_resolver.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/control/throw.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kGeneration = 7;

MemberEvent Event(MemberEvent::Kind kind, int rank, const std::string& cause) {
  MemberEvent event;
  event.kind = kind;
  event.member.rank = rank;
  event.member.host = "host-" + std::to_string(rank);
  event.member.pid = 100 + rank;
  event.member.cause = cause;
  event.member.last_progress = "all_reduce #4";
  event.generation = kGeneration;
  event.generation_ended = kind != MemberEvent::Kind::kLeft;
  return event;
}

MemberEvent Report(int rank, const std::string& error,
                   const std::vector<int>& culprits) {
  MemberEvent event = Event(MemberEvent::Kind::kFailed, rank, error);
  event.code = StatusCode::kDeadlineExceeded;
  for (const int culprit : culprits) {
    event.culprits.push_back({.rank = culprit});
  }
  return event;
}

// The text is for people: the payload says what failed.
Status ClosedBy(int rank) {
  Status status =
      UnavailableError("no more of all_reduce: connection closed by rank " +
                       std::to_string(rank));
  dataplane::SetCulpritRank(status, rank);
  dataplane::SetFailedCall(status, {.label = "all_reduce #5"});
  return status;
}

std::vector<int> Ranks(const Status& status) {
  std::vector<int> ranks;
  for (const MemberInfo& member : ToCulprits(status).members) {
    ranks.push_back(member.rank);
  }
  return ranks;
}

class ErrorResolverTest : public ::testing::Test {
 protected:
  void Make(const ErrorResolver::Options& options) {
    resolver_ = std::make_unique<ErrorResolver>(options);
  }

  void Begin() {
    ErrorResolver::Group group;
    group.name = "world";
    group.generation = kGeneration;
    group.rank = 1;
    for (int rank = 0; rank < 4; ++rank) {
      group.seats.push_back({.rank = rank,
                             .host = "host-" + std::to_string(rank),
                             .pid = 100 + rank});
    }
    group.current = [] { return std::string("all_reduce #5 float32[8] sum"); };
    group.abort = [this](const Status& why) { aborted_ = why; };
    group.report = [this](const ErrorResolver::Symptom& symptom) {
      reported_ = symptom.error;
      call_ = symptom.call;
      is_decision_ = symptom.is_decision;
      if (event_.has_value()) resolver_->OnEvent(*event_);
      return ErrorResolver::Answer{.reached = event_.has_value(),
                                   .refusal = refusal_};
    };
    group.connected = [this] { return connected_ && --away_for_ < 0; };
    resolver_->Begin(std::move(group));
  }

  std::unique_ptr<ErrorResolver> resolver_ = std::make_unique<ErrorResolver>(
      ErrorResolver::Options{.verdict_timeout = seconds(60)});
  Status aborted_;
  // The rank's report.
  Status reported_;
  std::string call_;
  bool is_decision_ = false;
  // The event that the coordinator sends after this rank's report; none: it is
  // out of reach.
  std::optional<MemberEvent> event_;
  Status refusal_;
  bool connected_ = true;
  // After how many looks the connection is back.
  int away_for_ = 0;
};

TEST_F(ErrorResolverTest, AnEventAbortsTheGroupAndNamesEverything) {
  Begin();
  resolver_->OnEvent(
      Event(MemberEvent::Kind::kLost, 2, "no heartbeat for 11s (lease 10s)"));
  EXPECT_EQ(aborted_.message(),
            "all_reduce #5 float32[8] sum on group \"world\": rank 2 (host-2, "
            "pid 102) was lost: no heartbeat for 11s (lease 10s); last "
            "progress: all_reduce #4");
  EXPECT_TRUE(IsUnavailable(aborted_));
  EXPECT_THAT(Ranks(aborted_), ElementsAre(2));
}

// The group has ranks 1 and 3, which are its ranks 0 and 1.
class SubgroupErrorResolverTest : public ::testing::Test {
 protected:
  SubgroupErrorResolverTest() {
    ErrorResolver::Group group;
    group.name = "odd";
    group.generation = kGeneration;
    group.rank = 1;
    group.seats = {{.rank = 1, .host = "host-1", .pid = 101},
                   {.rank = 3, .host = "host-3", .pid = 103}};
    group.abort = [this](const Status& why) { aborted_ = why; };
    resolver_.Begin(std::move(group));
  }

  ErrorResolver resolver_{
      {.verdict_timeout = milliseconds(1), .embedded = true, .ranks = {1, 3}}};
  Status aborted_;
};

// The group must wake from every wait for the others, even if the event came
// first. A member that left in peace is a different error, because it may have
// formed the group.
TEST(FormingErrorResolverTest, WhoIsGoneEndsTheFormingOfItsGroup) {
  using Kind = MemberEvent::Kind;
  for (const auto& [kind, code] :
       {std::pair(Kind::kLost, StatusCode::kUnavailable),
        std::pair(Kind::kLeft, StatusCode::kCancelled)}) {
    for (const bool has_heard : {false, true}) {
      ErrorResolver resolver({.ranks = {1, 3}});
      Status aborted;
      ErrorResolver::Group group;
      group.generation = kGeneration;
      group.seats = {{.rank = 1}, {.rank = 3}};
      group.abort = [&](const Status& why) { aborted = why; };
      resolver.OnEvent(Event(Kind::kLost, 2, "not of it"));
      if (has_heard) resolver.OnEvent(Event(kind, 3, "connection closed"));
      resolver.Form(std::move(group));
      if (!has_heard) {
        EXPECT_TRUE(aborted.ok()) << aborted;
        resolver.OnEvent(Event(kind, 3, "connection closed"));
      }
      EXPECT_EQ(aborted.code(), code);
      EXPECT_THAT(std::string(aborted.message()),
                  StartsWith("while the group formed: global rank 3 (host-3"));
      EXPECT_THAT(dataplane::CulpritRanks(aborted), ElementsAre(1));
    }
  }
}

TEST_F(SubgroupErrorResolverTest, OthersComeAndGo) {
  resolver_.OnEvent(Event(MemberEvent::Kind::kLost, 2, "connection closed"));
  resolver_.OnEvent(Event(MemberEvent::Kind::kFailed, 0, "out of memory"));
  resolver_.OnSessionOver(UnavailableError("rank 0 took it along"));
  EXPECT_TRUE(resolver_.Known(kGeneration).ok());
}

TEST_F(SubgroupErrorResolverTest, AMemberEndsItWhateverHasEndedTheGeneration) {
  resolver_.OnEvent(Event(MemberEvent::Kind::kLost, 2, "connection closed"));
  MemberEvent second = Event(MemberEvent::Kind::kLost, 3, "connection closed");
  second.generation_ended = false;
  resolver_.OnEvent(second);
  EXPECT_THAT(Ranks(aborted_), ElementsAre(3));
  EXPECT_THAT(std::string(aborted_.message()),
              StartsWith("group \"odd\": global rank 3 (host-3, pid 103) was "
                         "lost: "));
}

// As the data plane delivers it: with the culprit's group rank.
Status Verdict(const std::vector<int>& culprits) {
  Status verdict = AsVerdict(
      AbortedError("group \"odd\": aborted by rank 1: enough"), culprits);
  dataplane::SetCulpritRank(verdict, 0);
  return verdict;
}

TEST_F(SubgroupErrorResolverTest,
       WhatARankHasDecidedIsTheEndWordForWordAndAtOnce) {
  resolver_.OnEvent(Event(MemberEvent::Kind::kLeft, 1, "finished"));
  const Status error = resolver_.Decide(Verdict({1, 3}));
  EXPECT_EQ(error.message(), "group \"odd\": aborted by rank 1: enough");
  EXPECT_TRUE(IsAborted(error));
  ASSERT_THAT(Ranks(error), ElementsAre(1, 3));
  EXPECT_EQ(ToCulprits(error).members[1].host, "host-3");
}

TEST_F(ErrorResolverTest, OfManyThatADecisionBlamesSomeAreDescribed) {
  ErrorResolver::Options options;
  std::vector<int> culprits;
  ErrorResolver::Group group;
  group.name = "many";
  group.generation = kGeneration;
  group.rank = 50;
  for (int rank = 0; rank <= 50; ++rank) {
    options.ranks.push_back(rank);
    group.seats.push_back({.rank = rank, .host = "host"});
    if (rank < 20 || rank == 40) culprits.push_back(rank);
  }
  ErrorResolver resolver(options);
  resolver.Begin(group);
  const Culprits found = ToCulprits(resolver.Decide(Verdict(culprits)));
  EXPECT_EQ(found.members.size(), 8u);
  EXPECT_EQ(found.size(), 21u);
  for (const int rank : culprits) EXPECT_TRUE(found.Include(rank)) << rank;
}

TEST(VerdictTest, NamesAsManyRanksAsHaveRoom) {
  std::vector<int> even;
  for (int rank = 1000; rank < 2000; rank += 2) even.push_back(rank);
  const auto text = dataplane::Verdict(AsVerdict(AbortedError(""), even));
  ASSERT_TRUE(text.has_value());
  EXPECT_THAT(*text, StartsWith("1000,1002,1004,"));
  EXPECT_LE(text->size(), dataplane::kVerdictBytesMax);
  EXPECT_EQ(dataplane::Verdict(AsVerdict(AbortedError(""), {5, 3, 4})), "3-5");
}

TEST_F(ErrorResolverTest, ADecisionOnTheDefaultGroupIsTheCoordinatorsToTell) {
  event_ = Report(0, "out of memory", {0});
  Begin();
  EXPECT_EQ(resolver_->Decide(Verdict({0})).message(), "out of memory");
  EXPECT_TRUE(is_decision_);
  EXPECT_EQ(reported_.message(), "group \"odd\": aborted by rank 1: enough");
}

TEST_F(ErrorResolverTest, ADecisionStandsWhileTheCoordinatorIsOutOfReach) {
  connected_ = false;
  Begin();
  EXPECT_EQ(resolver_->Decide(Verdict({0})).message(),
            "group \"odd\": aborted by rank 1: enough");
  EXPECT_TRUE(reported_.ok());
}

// Ranks that only report a loss must not be blamed.
TEST_F(SubgroupErrorResolverTest,
       TheDataPlaneHearsWhoIsToBlameByItsRankInTheGroup) {
  resolver_.OnEvent(Event(MemberEvent::Kind::kLost, 3, "no heartbeat for 11s"));
  EXPECT_EQ(dataplane::CulpritRanks(aborted_), std::vector<int>{1});
}

// This rank resumes when the others, with rank 0's coordinator, are gone.
TEST_F(ErrorResolverTest, WhomTheOthersHoldForLostNamesItself) {
  Make({.verdict_timeout = milliseconds(1),
        .embedded = true,
        .coordinator_loss = seconds(60)});
  connected_ = false;
  Begin();
  const Status why = resolver_->Decide(ClosedBy(1));
  EXPECT_THAT(Ranks(why), ElementsAre(1));
  EXPECT_THAT(
      std::string(why.message()),
      EndsWith("; the coordinator cannot be asked who is to blame; rank "
               "1 is this one"));
}

TEST_F(ErrorResolverTest, AllWhomASymptomBlamesAreNamed) {
  event_ = Report(0, "the verdict", {3});
  Begin();
  Status symptom = InvalidArgumentError("they run barrier #5");
  dataplane::SetCulpritRanks(symptom, {0, 1, 2});
  EXPECT_EQ(resolver_->Decide(symptom).message(), "the verdict");
  EXPECT_THAT(Ranks(reported_), ElementsAre(0, 1, 2));
  EXPECT_EQ(reported_.message(),
            "they run barrier #5; rank 0 is pid 100 on host-0; rank 1 is pid "
            "101 on host-1; rank 2 is pid 102 on host-2");
}

TEST_F(SubgroupErrorResolverTest, WhoReportsIsNotToBlame) {
  resolver_.OnEvent(Report(3, "all_reduce #5 on group \"world\"", {2}));
  EXPECT_TRUE(resolver_.Known(kGeneration).ok());
  resolver_.OnEvent(Report(0, "all_reduce #5 on group \"world\"", {2, 1}));
  EXPECT_THAT(Ranks(aborted_), ElementsAre(2, 1));
}

// The event describes only some of sixty stuck ranks.
TEST_F(SubgroupErrorResolverTest,
       CulpritsOfWhomOnlyTheRankIsKnownEndTheirGroups) {
  MemberEvent report = Report(4, "sixty ranks are stuck", {6, 7, 8});
  report.other_culprits = {{.first = 9, .count = 57}};
  resolver_.OnEvent(report);
  EXPECT_TRUE(resolver_.Known(kGeneration).ok());
  report.other_culprits = {{.first = 2, .count = 2}};
  resolver_.OnEvent(report);
  EXPECT_EQ(resolver_.Known(kGeneration).message(), aborted_.message());
  EXPECT_THAT(Ranks(aborted_), ElementsAre(6, 7, 8));
  EXPECT_EQ(ToCulprits(aborted_).size(), 5u);
}

TEST_F(SubgroupErrorResolverTest, WhereNotAllCulpritsAreKnownItMayBeAnybody) {
  MemberEvent report = Report(4, "sixty ranks are stuck", {6, 7, 8});
  report.unknown_culprits = 57;
  resolver_.OnEvent(report);
  EXPECT_EQ(resolver_.Known(kGeneration), aborted_);
}

TEST_F(SubgroupErrorResolverTest, ASymptomsRankIsTheGroups) {
  const Status why = resolver_.Decide(ClosedBy(1));
  EXPECT_THAT(Ranks(why), ElementsAre(3));
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("; global rank 3 is pid 103 on host-3"));
  EXPECT_EQ(resolver_.Known(kGeneration), why);
}

TEST_F(ErrorResolverTest, TheVerdictWinsOverTheSymptom) {
  Begin();
  Status decided;
  std::thread caller([&] { decided = resolver_->Decide(ClosedBy(3)); });
  resolver_->OnEvent(Event(MemberEvent::Kind::kLost, 2, "connection closed"));
  caller.join();
  EXPECT_THAT(Ranks(decided), ElementsAre(2));
}

TEST_F(ErrorResolverTest, EveryFailureAfterTheFirstIsTheSame) {
  Begin();
  resolver_->OnEvent(Event(MemberEvent::Kind::kLost, 2, "connection closed"));
  resolver_->OnEvent(Event(MemberEvent::Kind::kLost, 3, "connection closed"));
  const Status first = resolver_->Decide(ClosedBy(3));
  EXPECT_THAT(Ranks(first), ElementsAre(2));
  EXPECT_EQ(resolver_->Decide(ClosedBy(0)), first);
}

TEST_F(ErrorResolverTest, WhoLeavesInPeaceEndsNothing) {
  Begin();
  resolver_->OnEvent(Event(MemberEvent::Kind::kLeft, 2, "finished"));
  EXPECT_TRUE(aborted_.ok());
  EXPECT_TRUE(resolver_->Known(kGeneration).ok());
}

TEST_F(ErrorResolverTest, WhoLeavesForTheNextGenerationEndsThisOne) {
  Begin();
  MemberEvent event = Event(MemberEvent::Kind::kLeft, 2, "gave up");
  event.generation_ended = true;
  resolver_->OnEvent(event);
  EXPECT_THAT(Ranks(aborted_), ElementsAre(2));
}

TEST_F(ErrorResolverTest, WhoLeftExplainsItsClosedConnection) {
  Make({.verdict_timeout = milliseconds(1)});
  connected_ = false;
  Begin();
  resolver_->OnEvent(Event(MemberEvent::Kind::kLeft, 2, "finished"));
  const Status decided = resolver_->Decide(ClosedBy(2));
  EXPECT_THAT(
      std::string(decided.message()),
      StartsWith("all_reduce #5 on group \"world\": rank 2 (host-2, pid "
                 "102) left: finished"));
}

TEST_F(ErrorResolverTest, TheVerdictAboutAReportIsEverybodys) {
  event_ = Report(0, "rank 2 is stuck", {2});
  Begin();
  const Status decided = resolver_->Decide(ClosedBy(3));
  EXPECT_TRUE(IsDeadlineExceeded(decided));
  EXPECT_EQ(decided.message(), "rank 2 is stuck");
  EXPECT_THAT(Ranks(decided), ElementsAre(2));
  EXPECT_THAT(Ranks(reported_), ElementsAre(3));
  EXPECT_EQ(call_, "all_reduce #5 on group \"world\"");
  EXPECT_FALSE(is_decision_);
  // The payload is only for the report, not for users.
  EXPECT_TRUE(dataplane::FindFailedCall(reported_).has_value());
  EXPECT_EQ(dataplane::FindFailedCall(decided), std::nullopt);
  EXPECT_THAT(std::string(reported_.message()),
              HasSubstr("rank 3 is pid 103 on host-3"));
}

TEST_F(ErrorResolverTest, ReportsAgainUntilThereIsAVerdict) {
  Begin();
  ErrorResolver::Group group;
  group.name = "world";
  group.generation = kGeneration;
  group.seats = {{.rank = 0}, {.rank = 1}};
  int reports = 0;
  group.report = [&](const ErrorResolver::Symptom&) {
    if (++reports == 3) resolver_->OnEvent(Report(0, "the verdict", {1}));
    return ErrorResolver::Answer{.reached = reports == 2};
  };
  resolver_->Begin(std::move(group));
  EXPECT_EQ(resolver_->Decide(ClosedBy(1)).message(), "the verdict");
  EXPECT_EQ(reports, 3);
}

TEST_F(ErrorResolverTest, ReportsOnceHoweverShortTheTime) {
  Make({.verdict_timeout = milliseconds(0)});
  event_ = Report(0, "the verdict", {3});
  Begin();
  EXPECT_EQ(resolver_->Decide(ClosedBy(3)).message(), "the verdict");
}

TEST_F(ErrorResolverTest, ReportsWhatItKnowsWhenTheConnectionIsBack) {
  event_ = Report(0, "the verdict", {3});
  away_for_ = 2;
  Begin();
  EXPECT_EQ(resolver_->Decide(InvalidArgumentError("they differ")).message(),
            "the verdict");
}

// The timeout is longer than the test's.
TEST_F(ErrorResolverTest, ACoordinatorThatRefusesTheReportIsNotAskedAgain) {
  refusal_ = AbortedError("generation 7 is over");
  Begin();
  EXPECT_THAT(std::string(resolver_->Decide(ClosedBy(3)).message()),
              HasSubstr("; the coordinator refuses to say who is to blame: "
                        "generation 7 is over"));
}

TEST_F(ErrorResolverTest, ACoordinatorThatCannotBeAskedIsNamed) {
  Make({.verdict_timeout = milliseconds(1)});
  Begin();
  EXPECT_THAT(std::string(resolver_->Decide(ClosedBy(3)).message()),
              HasSubstr("; the coordinator cannot be asked who is to blame"));
}

// Two groups may have one name.
TEST_F(SubgroupErrorResolverTest, TheVerdictIsThatOfTheGroup) {
  MemberEvent event = Report(-1, "rank 3 is stuck", {3});
  event.kind = MemberEvent::Kind::kGroupFailed;
  event.generation_ended = false;
  event.group = "odd";
  event.group_instance = "/2";
  resolver_.OnEvent(event);
  EXPECT_TRUE(resolver_.Known(kGeneration).ok());
  event.group_instance = "";
  event.code = StatusCode::kOk;
  event.member.cause = "timed out";
  resolver_.OnEvent(event);
  EXPECT_TRUE(resolver_.Known(kGeneration).ok());
  EXPECT_EQ(resolver_.FindTrouble(kGeneration), AbortedError("timed out"));
  event.code = StatusCode::kDeadlineExceeded;
  event.member.cause = "rank 3 is stuck";
  resolver_.OnEvent(event);
  EXPECT_EQ(aborted_.message(), "rank 3 is stuck");
  EXPECT_THAT(Ranks(aborted_), ElementsAre(3));
}

TEST_F(ErrorResolverTest, AReportBlamesWhomItNamesFromTheStart) {
  Begin();
  resolver_->OnEvent(Report(0, "rank 3 is stuck", {3}));
  EXPECT_THAT(Ranks(resolver_->Known(kGeneration)), ElementsAre(3));
  EXPECT_THAT(Ranks(aborted_), ElementsAre(3));
  EXPECT_THAT(Ranks(resolver_->Decide(ClosedBy(0))), ElementsAre(3));
  EXPECT_TRUE(reported_.ok());
}

TEST_F(ErrorResolverTest, AReportOfATextBlamesItsMember) {
  Begin();
  resolver_->OnEvent(Event(MemberEvent::Kind::kFailed, 0, "out of memory"));
  EXPECT_THAT(Ranks(aborted_), ElementsAre(0));
  EXPECT_TRUE(IsAborted(aborted_));
  EXPECT_THAT(std::string(aborted_.message()),
              HasSubstr("rank 0 (host-0, pid 100) failed: out of memory"));
}

TEST_F(ErrorResolverTest, OnlyTheEventThatEndedTheGenerationDecides) {
  Begin();
  MemberEvent late = Report(0, "rank 3 is stuck", {3});
  late.generation_ended = false;
  resolver_->OnEvent(late);
  EXPECT_TRUE(resolver_->Known(kGeneration).ok());
  resolver_->OnEvent(Report(2, "rank 1 is stuck", {1}));
  EXPECT_THAT(Ranks(resolver_->Known(kGeneration)), ElementsAre(1));
}

// Collects log lines while it exists.
class LogLines : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            size_t bytes) override {
    lines_.emplace_back(message, bytes);
  }

  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

TEST_F(ErrorResolverTest, TheEndOfAGroupIsOneLineInTheLog) {
  Begin();
  LogLines log;
  resolver_->OnEvent(
      Event(MemberEvent::Kind::kLost, 2, "no heartbeat for 11s (lease 10s)"));
  resolver_->OnEvent(Event(MemberEvent::Kind::kLost, 3, "connection closed"));
  resolver_->Decide(ClosedBy(3)).IgnoreError();
  EXPECT_THAT(log.lines(),
              ElementsAre("group failed: group=world generation=7 rank=1 "
                          "culprits=2 cause=\"all_reduce #5 float32[8] sum on "
                          "group \\\"world\\\": rank 2 (host-2, pid 102) was "
                          "lost: no heartbeat for 11s (lease 10s); last "
                          "progress: all_reduce #4\""));
}

TEST_F(ErrorResolverTest, WhatIsDecidedHereIsLoggedToo) {
  Make({.verdict_timeout = milliseconds(1)});
  connected_ = false;
  Begin();
  LogLines log;
  resolver_->Decide(InternalError("reduction failed")).IgnoreError();
  EXPECT_THAT(log.lines(),
              ElementsAre("group failed: group=world generation=7 rank=1 "
                          "culprits= cause=\"reduction failed; the coordinator "
                          "cannot be asked who is to blame\""));
}

TEST_F(ErrorResolverTest, WhoWaitsForTheNextGenerationIsNoCulprit) {
  MemberEvent waiting =
      Event(MemberEvent::Kind::kWaiting, -1, "waits for a seat");
  waiting.generation_ended = false;
  waiting.waiting = 1;
  resolver_->OnEvent(waiting);
  EXPECT_TRUE(resolver_->Known(kGeneration).ok());
  Begin();
  EXPECT_TRUE(aborted_.ok());
}

TEST_F(ErrorResolverTest, EventsBeforeTheGroupCount) {
  resolver_->OnEvent(Event(MemberEvent::Kind::kLost, 2, "connection closed"));
  EXPECT_FALSE(resolver_->Known(kGeneration).ok());
  EXPECT_TRUE(resolver_->Known(kGeneration + 1).ok());
  Begin();
  EXPECT_THAT(Ranks(aborted_), ElementsAre(2));
}

TEST_F(ErrorResolverTest, WhatBreaksWhileTheGroupFormsWaitsForWhoIsGone) {
  Status known;
  std::thread waiter([&] { known = resolver_->AwaitKnown(kGeneration); });
  resolver_->OnEvent(Event(MemberEvent::Kind::kLost, 2, "gone"));
  waiter.join();
  EXPECT_THAT(known.message(), HasSubstr("rank 2 (host-2, pid 102) was lost"));
  Make({.verdict_timeout = milliseconds(1)});
  EXPECT_TRUE(resolver_->AwaitKnown(kGeneration).ok());
}

TEST_F(ErrorResolverTest, OtherGenerationsDoNotMatter) {
  Begin();
  MemberEvent event = Event(MemberEvent::Kind::kLost, 2, "old");
  event.generation = kGeneration - 1;
  resolver_->OnEvent(event);
  EXPECT_TRUE(aborted_.ok());
}

TEST_F(ErrorResolverTest, AnEmbeddedCoordinatorTakesItsGroupWithIt) {
  Make({.verdict_timeout = seconds(60), .embedded = true});
  Begin();
  resolver_->OnSessionOver(UnavailableError(
      "coordinator at h:1 (embedded in rank 0) is gone: connection refused"));
  EXPECT_EQ(aborted_.message(),
            "all_reduce #5 float32[8] sum on group \"world\": rank 0 (host-0, "
            "pid 100) was lost: connection to the coordinator that it served "
            "lost and not restored; last progress: not known, that coordinator "
            "had it");
  EXPECT_THAT(Ranks(aborted_), ElementsAre(0));
}

TEST_F(ErrorResolverTest, UnlessRankZeroHasLeftInPeace) {
  Make({.verdict_timeout = seconds(60), .embedded = true});
  Begin();
  resolver_->OnEvent(Event(MemberEvent::Kind::kLeft, 0, "finished"));
  resolver_->OnSessionOver(UnavailableError("gone"));
  EXPECT_TRUE(aborted_.ok());
}

TEST_F(ErrorResolverTest, AnExternalCoordinatorDoesNot) {
  Begin();
  resolver_->OnSessionOver(AbortedError("restarted"));
  EXPECT_TRUE(aborted_.ok());
  // Decide does not wait for a verdict.
  const Status decided = resolver_->Decide(ClosedBy(3));
  EXPECT_THAT(Ranks(decided), ElementsAre(3));
}

TEST_F(ErrorResolverTest, OneThatHoldsThisMemberForLostDoes) {
  Begin();
  resolver_->OnSessionOver(FailedPreconditionError("was lost"));
  EXPECT_TRUE(IsFailedPrecondition(aborted_));
  // Tells readers of the error that its cause is elsewhere.
  EXPECT_THAT(Ranks(aborted_), ElementsAre(1));
}

TEST_F(SubgroupErrorResolverTest, WhomTheCoordinatorHoldsForLostNamesItself) {
  resolver_.OnSessionOver(FailedPreconditionError("was lost"));
  EXPECT_THAT(Ranks(aborted_), ElementsAre(1));
}

TEST_F(ErrorResolverTest, OneThatDoesNotLetItInAnyMoreDoes) {
  Begin();
  resolver_->OnSessionOver(UnauthenticatedError("the token expired"));
  EXPECT_TRUE(IsUnauthenticated(aborted_));
  EXPECT_THAT(std::string(aborted_.message()), HasSubstr("token expired"));
}

TEST_F(ErrorResolverTest, DoesNotWaitForWhoIsToBlame) {
  Begin();
  resolver_->OnEvent(Report(0, "rank 3 is stuck", {3}));
  resolver_->OnEvent(Event(MemberEvent::Kind::kLeft, 2, "finished"));
  // Returns at once; the timeout is longer than the test's.
  resolver_->AwaitOthersGone(std::chrono::hours(1));
}

TEST_F(ErrorResolverTest, DoesNotWaitForCulpritsOfWhomOnlyTheRankIsKnown) {
  Begin();
  MemberEvent report = Report(0, "two ranks are stuck", {3});
  report.other_culprits = {{.first = 2, .count = 1}};
  resolver_->OnEvent(report);
  resolver_->OnEvent(Event(MemberEvent::Kind::kLeft, 0, "finished"));
  resolver_->AwaitOthersGone(std::chrono::hours(1));
}

// Ranks 2 and 3 left together; only rank 2 is described.
MemberEvent LeftTogether() {
  MemberEvent event = Event(MemberEvent::Kind::kLeft, 2, "finished");
  event.left_members = {event.member};
  event.left_ranks = {{.first = 2, .count = 2}};
  return event;
}

TEST_F(ErrorResolverTest, AllThatLeftTogetherHaveLeft) {
  Begin();
  resolver_->OnEvent(Event(MemberEvent::Kind::kLeft, 0, "finished"));
  resolver_->OnEvent(LeftTogether());
  // Returns at once; the timeout is longer than the test's.
  resolver_->AwaitOthersGone(std::chrono::hours(1));
  EXPECT_TRUE(resolver_->Known(kGeneration).ok());
}

TEST_F(ErrorResolverTest, WhoLeftAmongManyExplainsItsClosedConnection) {
  Make({.verdict_timeout = milliseconds(1)});
  connected_ = false;
  Begin();
  resolver_->OnEvent(LeftTogether());
  EXPECT_EQ(resolver_->Decide(ClosedBy(3)).message(),
            "all_reduce #5 on group \"world\": rank 3 (host-3, pid 103) left; "
            "last progress: not told");
}

TEST_F(ErrorResolverTest, WhoLeavesWhileTheGroupFormsEndsIt) {
  resolver_->OnEvent(LeftTogether());
  EXPECT_TRUE(resolver_->Known(kGeneration + 1).ok());
  EXPECT_THAT(std::string(resolver_->Known(kGeneration).message()),
              StartsWith("while the group formed: rank 2 (host-2, pid 102) "
                         "left: finished"));
}

TEST_F(ErrorResolverTest, WaitsForTheGoodbyeOfAllOthers) {
  Begin();
  resolver_->OnEvent(Event(MemberEvent::Kind::kLeft, 0, "finished"));
  resolver_->OnEvent(Event(MemberEvent::Kind::kLeft, 2, "finished"));
  std::thread waiter([&] { resolver_->AwaitOthersGone(seconds(60)); });
  resolver_->OnEvent(Event(MemberEvent::Kind::kLost, 3, "connection closed"));
  waiter.join();
}

}  // namespace
}  // namespace muster::internal
