#include "coordinator/core/barriers.h"

#include <set>
#include <string>
#include <vector>

#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string MemberName(int32_t rank) { return "m" + std::to_string(rank); }

// A generation of eight ranks on trainer-0 to trainer-7.
class BarrierTableTest : public testing::Test {
 protected:
  BarrierTableTest() { Form(1); }

  void TearDown() override {
    EXPECT_EQ(barriers_.CheckInvariants(), OkStatus());
    EXPECT_EQ(quota_.parked(), barriers_.waiters());
  }

  void Form(int64_t generation, int32_t size = 8) {
    auto formation = std::make_shared<Formation>();
    formation->generation = Generation(generation);
    for (int32_t rank = 0; rank < size; ++rank) {
      const std::string host = "trainer-" + std::to_string(rank);
      std::vector<Event> departed;
      ASSERT_EQ(members_
                    .Register(From(MemberName(rank), 1, 1),
                              {.host = host, .pid = 100 + rank}, now_, departed,
                              notes_)
                    .status(),
                OkStatus());
      members_.AssignRank(MemberId(MemberName(rank)), Rank(rank),
                          formation->generation);
      formation->world.push_back(
          {MemberId(MemberName(rank)), Incarnation(1), host, 100 + rank, ""});
    }
    barriers_.Reset(formation, now_, out_);
  }

  struct Options {
    std::string barrier = "epoch_end";
    std::vector<Rank> ranks{};
    Duration timeout = 30s;
    bool wait_all_ranks = false;
    int64_t generation = 0;
  };

  // The waiter of an arrival is its rank, plus 100 for each later arrival of
  // the rank.
  void Arrive(int32_t rank, const Options& options) {
    BarrierRequest request;
    request.generation = Generation(options.generation);
    request.barrier = options.barrier;
    request.ranks = options.ranks;
    request.rank = Rank(rank);
    request.timeout = options.timeout;
    request.wait_all_ranks = options.wait_all_ranks;
    uint64_t waiter = rank;
    while (!waiters_.insert(waiter).second) waiter += 100;
    barriers_.Arrive(From(MemberName(rank), 1, waiter), request, now_, out_);
  }
  void Arrive(int32_t rank) { Arrive(rank, Options()); }

  void ArriveAllBut(const std::set<int32_t>& absent, const Options& options) {
    for (int32_t rank = 0; rank < 8; ++rank) {
      if (!absent.contains(rank)) Arrive(rank, options);
    }
  }

  void Lose(int32_t rank, const std::string& cause = "SIGSEGV") {
    std::vector<Event> departed;
    members_.Fail(*members_.Find(MemberId(MemberName(rank))), {.text = cause},
                  now_, departed, notes_);
    barriers_.MemberDeparted(departed[0], DepartedError(departed[0]), now_,
                             out_);
  }

  std::vector<Reply> TakeReplies() {
    std::vector<Reply> replies;
    replies.swap(out_.replies);
    return replies;
  }

  static const BarrierResult& GetResult(const Reply& reply) {
    return *std::get<BarrierReply>(reply.payload);
  }

  Instant now_ = t0;
  Limits limits_;
  WaiterQuota quota_{1000};
  Journal journal_{/*on=*/false};
  Membership members_{MembershipOptions(), &limits_, &journal_};
  GroupTable groups_{&limits_, &members_, &journal_};
  BarrierTable barriers_{&limits_, &quota_, &members_, &groups_, &journal_};
  Outbox out_;
  Outbox notes_;
  std::set<uint64_t> waiters_;
};

constexpr absl::string_view kTwoMissing =
    "barrier \"epoch_end\" #1: 6 of 8 ranks arrived in 30s; missing ranks 3 "
    "(trainer-3), 5 (trainer-5, failed: SIGSEGV); first to arrive: rank 0";

TEST_F(BarrierTableTest, TheLastArrivalReleasesAll) {
  ArriveAllBut({5}, {});
  EXPECT_THAT(TakeReplies(), IsEmpty());
  Arrive(5);
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, SizeIs(8));
  for (const Reply& reply : replies) {
    EXPECT_EQ(reply.status, OkStatus());
    EXPECT_EQ(GetResult(reply).outcome, BarrierOutcome::kReleased);
    EXPECT_EQ(GetResult(reply).instance, 1);
  }
  EXPECT_EQ(barriers_.NextDeadline(), std::nullopt);
}

TEST_F(BarrierTableTest, InstancesAreNumbered) {
  for (int64_t instance = 1; instance <= 3; ++instance) {
    ArriveAllBut({}, {});
    const std::vector<Reply> replies = TakeReplies();
    ASSERT_THAT(replies, SizeIs(8));
    EXPECT_EQ(GetResult(replies[7]).instance, instance);
  }
}

TEST_F(BarrierTableTest, TimeoutNamesAllWhoAreMissingToEverybody) {
  Lose(5);
  ArriveAllBut({3, 5}, {.wait_all_ranks = true});
  now_ += 30s;
  barriers_.Expire(now_, out_);
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, SizeIs(6));
  for (const Reply& reply : replies) {
    // DEADLINE_EXCEEDED and not ABORTED, although rank 5 is lost.
    EXPECT_EQ(reply.status.code(), StatusCode::kDeadlineExceeded);
    const BarrierResult& result = GetResult(reply);
    ASSERT_THAT(result.missing, SizeIs(2));
    EXPECT_EQ(result.missing[0].rank, Rank(3));
    EXPECT_EQ(result.missing[0].host, "trainer-3");
    EXPECT_EQ(result.missing[0].pid, 103);
    EXPECT_EQ(result.missing[0].cause, MissingCause::kLate);
    EXPECT_EQ(result.missing[0].last_heard_ago, 30s);
    EXPECT_EQ(result.missing[1].rank, Rank(5));
    EXPECT_EQ(result.missing[1].cause, MissingCause::kFailed);
    EXPECT_EQ(result.missing[1].cause_text, "SIGSEGV");
  }
}

TEST_F(BarrierTableTest, TheTextOfATimeout) {
  Lose(5);
  ArriveAllBut({3, 5}, {.wait_all_ranks = true});
  now_ += 30s;
  ASSERT_EQ(members_.Admit(From("m3", 1, 1), now_, out_).status(), OkStatus());
  barriers_.Expire(now_, out_);
  EXPECT_EQ(GetMessage(TakeReplies().at(0)), kTwoMissing);
}

TEST_F(BarrierTableTest, TheFirstCallersTimeoutCounts) {
  Arrive(0, {.timeout = 10s});
  Arrive(1, {.timeout = 60s});
  EXPECT_EQ(barriers_.NextDeadline(), t0 + 10s);
}

TEST_F(BarrierTableTest, AMemberThatIsLostFailsTheBarrierAtOnce) {
  Arrive(0);
  Arrive(2);
  now_ += 1500ms;
  Lose(5);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(
          AnsweredTo(0u, StatusCode::kAborted),
          FailedWith(2u, StatusCode::kAborted,
                     "barrier \"epoch_end\" #1: 2 of 8 ranks arrived in 1.5s; "
                     "missing ranks 1 (trainer-1), 3 (trainer-3), 4 "
                     "(trainer-4), 5 (trainer-5, failed: SIGSEGV), 6 "
                     "(trainer-6), 7 (trainer-7); first to arrive: rank 0")));
}

TEST_F(BarrierTableTest, ABarrierWithALostMemberFailsFromTheStart) {
  Lose(5);
  Arrive(0);
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(0u, StatusCode::kAborted)));
  Arrive(1);  // late: the stored decision
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(1u, StatusCode::kAborted)));
}

TEST_F(BarrierTableTest, ARankThatWasReplacedIsSaidToBe) {
  const Options pair = {.ranks = {Rank(0), Rank(1)}};
  Arrive(0, pair);
  Event event;
  event.kind = EventKind::kReplaced;
  event.rank = Rank(1);
  event.cause = "replaced by incarnation 2 on trainer-1, pid 9";
  event.generation = Generation(1);
  barriers_.MemberDeparted(event, DepartedError(event), now_, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  0u, StatusCode::kAborted,
                  "barrier \"epoch_end\" #1: 1 of 2 ranks arrived in 0ms; "
                  "missing rank 1 (trainer-1, replaced by incarnation 2 on "
                  "trainer-1, pid 9); first to arrive: rank 0")));
}

TEST_F(BarrierTableTest, WaitAllRanksWaitsForTheDeadlineInSpiteOfALoss) {
  Arrive(0, {.wait_all_ranks = true});
  Lose(5);
  EXPECT_THAT(TakeReplies(), IsEmpty());
  now_ += 30s;
  barriers_.Expire(now_, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(AnsweredTo(0u, StatusCode::kDeadlineExceeded)));
}

TEST_F(BarrierTableTest, AnArrivalOfALostMemberDoesNotCount) {
  ArriveAllBut({7}, {.wait_all_ranks = true});
  Lose(5);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(AnsweredTo(5u, StatusCode::kFailedPrecondition)));
  Arrive(7, {.wait_all_ranks = true});
  EXPECT_THAT(TakeReplies(), IsEmpty());
  now_ += 30s;
  barriers_.Expire(now_, out_);
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, SizeIs(7));
  ASSERT_THAT(GetResult(replies[0]).missing, SizeIs(1));
  EXPECT_EQ(GetResult(replies[0]).missing[0].rank, Rank(5));
}

TEST_F(BarrierTableTest, OtherGroupsAreNotConcernedByALoss) {
  const Options pair = {.barrier = "pair", .ranks = {Rank(0), Rank(1)}};
  Arrive(0, pair);
  Lose(5);
  EXPECT_THAT(TakeReplies(), IsEmpty());
  Arrive(1, pair);
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(0u, StatusCode::kOk),
                                         AnsweredTo(1u, StatusCode::kOk)));
}

// Describes first the ranks that are to blame, then the late ones.
TEST_F(BarrierTableTest, TheAnswerDescribesAFewAndHasTheRanksOfAll) {
  Form(2, 1600);
  Lose(1500);
  Lose(800);
  Arrive(3);
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(
      replies[0].status,
      AbortedError(
          "barrier \"epoch_end\" #1: 1 of 1600 ranks arrived in 0ms; "
          "missing ranks 800 (trainer-800, failed: SIGSEGV), 1500 "
          "(trainer-1500, failed: SIGSEGV), 0 (trainer-0), 1 (trainer-1), "
          "2 (trainer-2), 4 (trainer-4), 5 (trainer-5), 6 (trainer-6) "
          "and 1591 more (7-799, 801-1499, 1501-1599); first to arrive: "
          "rank 3"));
  ASSERT_THAT(GetResult(replies[0]).missing, SizeIs(kMissingInResultMax));
  // The two ranks that are gone, then 0 to 2 and 4 to 30.
  EXPECT_EQ(GetResult(replies[0]).missing.back().rank, Rank(30));
  EXPECT_THAT(GetResult(replies[0]).others,
              ElementsAre(31u, 769u, 1u, 699u, 1u, 99u));
}

TEST_F(BarrierTableTest, LongCausesAreListedInFullAsFarAsThereIsRoom) {
  for (const int32_t rank : {0, 1, 2, 3, 4, 5}) {
    Lose(rank, std::string(4000, 'x'));
  }
  Arrive(7);
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_THAT(GetResult(replies[0]).missing, SizeIs(4));
  EXPECT_THAT(GetResult(replies[0]).others, ElementsAre(4u, 3u));
  EXPECT_THAT(GetMessage(replies[0]),
              ::testing::HasSubstr(" and 3 more (4-6); "));
}

TEST_F(BarrierTableTest, ALateCallerGetsTheStoredDecisionAndIsInStepAfterIt) {
  ArriveAllBut({3}, {.timeout = 10s});
  now_ += 10s;
  barriers_.Expire(now_, out_);
  const std::vector<Reply> decided = TakeReplies();
  ArriveAllBut({3}, {});
  Arrive(3);
  const std::vector<Reply> late = TakeReplies();
  ASSERT_THAT(late, ElementsAre(AnsweredTo(3u, StatusCode::kDeadlineExceeded)));
  EXPECT_EQ(&GetResult(late[0]), &GetResult(decided[0]));
  Arrive(3);
  const std::vector<Reply> released = TakeReplies();
  ASSERT_THAT(released, SizeIs(8));
  EXPECT_EQ(GetResult(released[0]).instance, 2);
  EXPECT_EQ(released[0].status, OkStatus());
}

TEST_F(BarrierTableTest, OnlyTheLastDecisionsAreKeptForLateCallers) {
  limits_.decided_barriers = 2;
  for (int instance = 1; instance <= 3; ++instance) {
    Arrive(0, {.timeout = 0s});
  }
  TakeReplies();
  Arrive(3);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(FailedWith(
          3u, StatusCode::kOutOfRange,
          "barrier \"epoch_end\" #1 was decided long ago: it is at #3 "
          "now, and only the last 2 decisions are kept, and 67108864 bytes "
          "of those of all barriers")));
  Arrive(3);
  EXPECT_EQ(GetResult(TakeReplies().at(0)).instance, 2);
}

TEST_F(BarrierTableTest, TheOldestDecisionsGoWhenAllAreTooManyBytes) {
  Arrive(0, {.barrier = "one", .timeout = 0s});
  const int64_t bytes =
      CountBytes(GetResult(out_.replies.at(0))) +
      static_cast<int64_t>(out_.replies.at(0).status.message().size());
  limits_.decided_barrier_bytes = 2 * bytes;
  Arrive(0, {.barrier = "two", .timeout = 0s});
  EXPECT_EQ(barriers_.CheckInvariants(), OkStatus());
  Arrive(0, {.barrier = "six", .timeout = 0s});
  TakeReplies();
  Arrive(3, {.barrier = "one"});
  EXPECT_THAT(TakeReplies(),
              ElementsAre(AnsweredTo(3u, StatusCode::kOutOfRange)));
  Arrive(3, {.barrier = "two"});
  EXPECT_EQ(GetResult(TakeReplies().at(0)).instance, 1);
  // The restored decision counts towards the limit, too.
  BarrierTable restored(&limits_, &quota_, &members_, &groups_, &journal_);
  auto formation = std::make_shared<Formation>();
  formation->generation = Generation(1);
  for (int32_t rank = 0; rank < 8; ++rank) {
    formation->world.push_back(
        {MemberId(MemberName(rank)), Incarnation(1), "", 0, ""});
  }
  restored.RestoreFormation(formation);
  for (const char* name : {"two", "six"}) {
    restored.Restore(barriers_.MakeRecord("", name));
    restored.Restore(barriers_.MakeRecord("", name, 1));
  }
  EXPECT_EQ(restored.CheckInvariants(), OkStatus());
  EXPECT_EQ(restored.decision_bytes(), barriers_.decision_bytes());
}

TEST_F(BarrierTableTest, ANameIsFreeWhenAllHaveAskedForWhatIsNotKept) {
  limits_.open_barriers = 1;
  limits_.decided_barrier_bytes = 0;
  const std::vector<Rank> ranks = {Rank(0), Rank(3), Rank(5)};
  Arrive(0, {.barrier = "one", .ranks = ranks, .timeout = 0s});
  Arrive(3, {.barrier = "one", .ranks = ranks});
  TakeReplies();
  // Rank 5 may still come.
  Arrive(1, {.barrier = "two"});
  EXPECT_THAT(TakeReplies(),
              ElementsAre(AnsweredTo(1u, StatusCode::kResourceExhausted)));
  Lose(5);
  Arrive(1, {.barrier = "two", .wait_all_ranks = true});
  EXPECT_THAT(TakeReplies(), IsEmpty());
  EXPECT_EQ(barriers_.series(), 1);
}

TEST_F(BarrierTableTest, ASnapshotNamesTheFirstAndCountsAll) {
  Form(2, 100);
  for (int i = 0; i < 300; ++i) {
    Arrive(1, {.barrier = "b" + std::to_string(i),
               .timeout = std::chrono::seconds(300 - i)});
  }
  const std::vector<BarrierSnapshot> open = barriers_.Snapshot(now_);
  EXPECT_EQ(barriers_.open(), 300);
  ASSERT_THAT(open, SizeIs(kBarriersInSnapshotMax));
  EXPECT_EQ(open[0].barrier, "b299");
  EXPECT_EQ(open[0].expected - open[0].arrived, 99);
  ASSERT_THAT(open[0].missing, SizeIs(kMissingInSnapshotMax));
  EXPECT_EQ(open[0].missing[0].rank, Rank(0));
  EXPECT_EQ(open[0].missing[1].rank, Rank(2));
  EXPECT_EQ(open[0].missing[63].rank, Rank(64));
  EXPECT_EQ(open[0].others, (RankRanges{65, 35}));
}

TEST_F(BarrierTableTest, ASnapshotHasTheRanksOfAllUntilItIsLongEnough) {
  constexpr int kWorld = 1 << 14;
  Form(2, kWorld);
  constexpr int kWithAll = kRanksInSnapshotMax / kWorld;
  for (int i = 0; i <= kWithAll; ++i) {
    Arrive(1, {.barrier = "b" + std::to_string(i),
               .timeout = std::chrono::seconds(10 + i)});
  }
  const std::vector<BarrierSnapshot> open = barriers_.Snapshot(now_);
  ASSERT_THAT(open, SizeIs(kWithAll + 1));
  EXPECT_EQ(open[kWithAll - 1].others, (RankRanges{65, kWorld - 65}));
  EXPECT_THAT(open[kWithAll].others, IsEmpty());
}

TEST_F(BarrierTableTest, DifferentParticipantsFailAtOnceAndNameBothCallers) {
  Arrive(0, {.ranks = {Rank(0), Rank(1)}});
  Arrive(1, {.ranks = {Rank(2), Rank(1), Rank(0)}});
  const std::string text =
      "barrier \"epoch_end\" #1: rank 1 (trainer-1, pid 101) expects 3 ranks "
      "(0, 1, 2), rank 0 (trainer-0, pid 100) expects 2 ranks (0, 1)";
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(0u, StatusCode::kInvalidArgument, text),
                          FailedWith(1u, StatusCode::kInvalidArgument, text)));
}

TEST_F(BarrierTableTest, DifferentTimeoutModesFailAtOnceAndNameBothCallers) {
  Arrive(0);
  Arrive(1, {.wait_all_ranks = true});
  const std::string text =
      "barrier \"epoch_end\" #1: rank 1 (trainer-1, pid 101) has "
      "wait_all_ranks=true, rank 0 (trainer-0, pid 100) has "
      "wait_all_ranks=false";
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(0u, StatusCode::kInvalidArgument, text),
                          FailedWith(1u, StatusCode::kInvalidArgument, text)));
  Arrive(2);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(2u, StatusCode::kInvalidArgument, text)));
}

TEST_F(BarrierTableTest, AnUnusedNameIsFreeForOtherParticipants) {
  Arrive(0, {.ranks = {Rank(0)}});
  Arrive(0, {.ranks = {Rank(0), Rank(1)}});
  Arrive(1, {.ranks = {Rank(0), Rank(1)}});
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(0u, StatusCode::kOk),
                                         AnsweredTo(100u, StatusCode::kOk),
                                         AnsweredTo(1u, StatusCode::kOk)));
}

TEST_F(BarrierTableTest, AllRanksAndTheirListAreTheSame) {
  std::vector<Rank> all;
  for (int32_t rank = 7; rank >= 0; --rank) all.push_back(Rank(rank));
  ArriveAllBut({0}, {.ranks = all});
  Arrive(0);
  EXPECT_THAT(TakeReplies(), SizeIs(8));
}

TEST_F(BarrierTableTest, BadArguments) {
  Arrive(0, {.ranks = {Rank(1), Rank(2)}});
  Arrive(1, {.ranks = {Rank(1), Rank(1)}});
  Arrive(2, {.ranks = {Rank(2), Rank(8)}});
  Arrive(3, {.generation = 9});
  BarrierRequest request;
  request.barrier = "b";
  request.rank = Rank(5);
  barriers_.Arrive(From("m4", 1, 4), request, now_, out_);
  request.rank = Rank(8);
  barriers_.Arrive(From("m4", 1, 40), request, now_, out_);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(
          FailedWith(0u, StatusCode::kInvalidArgument,
                     "barrier \"epoch_end\": rank 0 is not among the "
                     "participants 2 ranks (1, 2)"),
          FailedWith(1u, StatusCode::kInvalidArgument,
                     "barrier \"epoch_end\": participant 1 is listed twice"),
          FailedWith(2u, StatusCode::kInvalidArgument,
                     "barrier \"epoch_end\": participant 8 is outside of world "
                     "size 8 (ranks 0 to 7)"),
          FailedWith(3u, StatusCode::kInvalidArgument,
                     "barrier \"epoch_end\": generation 9 has not begun, "
                     "current is 1; take the number that the rendezvous "
                     "returned"),
          FailedWith(4u, StatusCode::kInvalidArgument,
                     "barrier \"b\": rank 5 of generation 1 is held by member "
                     "\"m5\", not by \"m4\""),
          FailedWith(40u, StatusCode::kInvalidArgument,
                     "barrier \"b\": rank 8 is outside of world size 8 (ranks "
                     "0 to 7)")));
  EXPECT_EQ(barriers_.series(), 0);
}

TEST_F(BarrierTableTest, TheLimitOfOpenBarriers) {
  limits_.open_barriers = 2;
  Arrive(0, {.barrier = "one"});
  Arrive(0, {.barrier = "two"});
  Arrive(0, {.barrier = "three"});
  EXPECT_THAT(TakeReplies(), ElementsAre(FailedWith(
                                 200u, StatusCode::kResourceExhausted,
                                 "limit open_barriers is 2, offered 3 (barrier "
                                 "\"three\")")));
}

TEST_F(BarrierTableTest, UnusedNamesMakeRoomForNewOnes) {
  limits_.open_barriers = 2;
  for (const char* name : {"one", "two", "three", "four"}) {
    Arrive(0, {.barrier = name, .ranks = {Rank(0)}});
  }
  EXPECT_THAT(TakeReplies(), SizeIs(4));
  EXPECT_EQ(barriers_.series(), 2);
}

TEST_F(BarrierTableTest, ANewGenerationBeginsAnew) {
  Arrive(0);
  Form(2);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(0u, StatusCode::kAborted,
                                     "barrier \"epoch_end\" #1: generation 1 "
                                     "is over; rendezvous again")));
  ArriveAllBut({}, {});
  EXPECT_EQ(GetResult(TakeReplies().at(0)).instance, 1);
}

TEST_F(BarrierTableTest, AWithdrawnArrivalCanBeMadeAgain) {
  Arrive(0);
  EXPECT_TRUE(barriers_.Cancel(WaiterId(0), CancelledError(""), out_));
  EXPECT_EQ(barriers_.open(), 0);
  ArriveAllBut({}, {});
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, SizeIs(9));
  EXPECT_EQ(GetResult(replies[8]).instance, 1);
}

// The rank has received the instance that was once the newest.
TEST_F(BarrierTableTest, ALaggardKeepsTheNameThroughLaterInstances) {
  limits_.decided_barrier_bytes = 0;
  Arrive(0, {.timeout = 0s});
  for (int32_t rank = 1; rank < 7; ++rank) Arrive(rank, {.timeout = 0s});
  Arrive(0, {.timeout = 0s});  // #2
  Arrive(7, {.timeout = 0s});  // for #1
  Arrive(7, {.timeout = 0s});  // for #2
  TakeReplies();
  // Ranks 1 to 6 have not received #2.
  Arrive(1, {.ranks = {Rank(1), Rank(7)}});
  EXPECT_THAT(TakeReplies(), SizeIs(1));
}

}  // namespace
}  // namespace muster::coordinator::core
