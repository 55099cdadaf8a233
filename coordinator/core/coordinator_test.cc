#include "coordinator/core/coordinator.h"

#include <string>
#include <vector>

#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class CoordinatorTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(coordinator_.CheckInvariants(), OkStatus());
  }

  std::vector<Reply> TakeReplies() {
    std::vector<Reply> replies;
    replies.swap(out_.replies);
    return replies;
  }

  void Register(const std::string& member, uint64_t incarnation = 1) {
    Outbox out;
    coordinator_.Register(From(member, incarnation, 999),
                          {.host = "host-" + member, .pid = 7}, now_, out);
    ASSERT_EQ(out.replies.back().status, OkStatus());
    for (Publication& event : out.events) {
      out_.events.push_back(std::move(event));
    }
  }

  // Registers a, b, ... and makes them ranks 0, 1, ... of a generation.
  void Form(const std::string& members) {
    const auto size = static_cast<int32_t>(members.size());
    Outbox out;
    for (int32_t i = 0; i < size; ++i) {
      const std::string name(1, members[i]);
      Register(name);
      coordinator_.Join(From(name, 1, 900 + i),
                        {.rank = Rank(i), .world_size = size, .timeout = 30s},
                        now_, out);
    }
    ASSERT_TRUE(coordinator_.Snapshot(now_).generation_running);
  }

  void Arrive(const Call& call, int32_t rank, Duration timeout = 30s) {
    BarrierRequest request;
    request.barrier = "b";
    request.rank = Rank(rank);
    request.timeout = timeout;
    coordinator_.Arrive(call, request, now_, out_);
  }

  void Set(const Call& call, const std::string& key, const std::string& value) {
    coordinator_.Mutate(call, "Set", now_, out_, [&](StoreEngine& store) {
      store.Set(call, key, value, {}, now_, out_);
    });
  }
  void Get(const Call& call, const std::string& key, Duration timeout) {
    coordinator_.Read(call, now_, out_, [&](StoreEngine& store) {
      store.Get(call, key, timeout, now_, out_);
    });
  }
  void Add(const Call& call, const std::string& key, int64_t delta) {
    coordinator_.Mutate(call, "Add", now_, out_, [&](StoreEngine& store) {
      store.Add(call, key, delta, out_);
    });
  }

  // Lets time pass as a driver does, with heartbeats of `alive`.
  void Advance(Duration duration, const std::string& alive) {
    const Instant end = now_ + duration;
    while (now_ < end) {
      now_ = std::min(end, now_ + 500ms);
      Outbox beats;
      for (char name : alive) {
        coordinator_.Heartbeat(From(std::string(1, name), 1, 998), {}, now_,
                               beats);
      }
      coordinator_.Tick(now_, out_);
    }
  }

  Instant now_ = t0;
  Coordinator coordinator_{CoordinatorEpoch(77), CoordinatorOptions()};
  Outbox out_;
};

// The acknowledgements of a message are processed once, not with each of its
// calls.
TEST_F(CoordinatorTest, AMessageAcknowledgesOnce) {
  Register("b");
  Set(From("b", 1, 1, 1), "k", "v");
  Call call = From("b", 1, 2, 2);
  call.message = 7;
  Set(call, "k", "v");
  call = From("b", 1, 3, 3, 2);
  call.message = 7;
  Set(call, "k", "v");
  EXPECT_EQ(coordinator_.Snapshot(now_).retained_replies, 3);
  call.sequence = SequenceNumber(4);
  call.message = 8;
  Set(call, "k", "v");
  EXPECT_EQ(coordinator_.Snapshot(now_).retained_replies, 2);
}

// Fencing.

TEST_F(CoordinatorTest, AFencedCallerChangesNothing) {
  Register("b", 1);
  Register("b", 2);
  Set(From("b", 1, 1, 1), "k", "old");
  coordinator_.Leave(From("b", 1, 2), "", now_, out_);
  const std::string stale = "stale incarnation 1 of member \"b\", current is 2";
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(FailedWith(1u, StatusCode::kFailedPrecondition, stale),
                  FailedWith(2u, StatusCode::kFailedPrecondition, stale)));
  EXPECT_EQ(coordinator_.Counts().keys, 0);
  EXPECT_EQ(coordinator_.Counts().live_members, 1);
}

TEST_F(CoordinatorTest, AClientWithoutANameUsesTheStoreOnly) {
  Set(Anonymous(1), "k", "v");
  Get(Anonymous(2), "k", 1s);
  coordinator_.Join(Anonymous(3), {.world_size = 1, .timeout = 1s}, now_, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(AnsweredTo(1u, StatusCode::kOk), ValueTo(2u, "v"),
                          AnsweredTo(3u, StatusCode::kFailedPrecondition)));
}

TEST_F(CoordinatorTest, ParkedCallsOfALostMemberFail) {
  Register("b");
  Get(From("b", 1, 1), "k", 60s);
  Advance(10s, "");
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  1u, StatusCode::kFailedPrecondition,
                  "member \"b\" (incarnation 1) was lost: no heartbeat for 10s "
                  "(lease 10s)")));
}

// Retries.

TEST_F(CoordinatorTest, ARetriedMutationIsAppliedOnce) {
  Register("b");
  for (uint64_t waiter = 1; waiter <= 3; ++waiter) {
    Add(From("b", 1, waiter, 1), "n", 5);
  }
  Add(From("b", 1, 4, 2), "n", 5);
  EXPECT_THAT(TakeReplies(), ElementsAre(NumberTo(1u, 5), NumberTo(2u, 5),
                                         NumberTo(3u, 5), NumberTo(4u, 10)));
}

TEST_F(CoordinatorTest, AFailedMutationIsRememberedToo) {
  Register("b");
  Set(Anonymous(1), "n", "text");
  Add(From("b", 1, 2, 1), "n", 5);
  Set(Anonymous(3), "n", "1");
  Add(From("b", 1, 4, 1), "n", 5);
  EXPECT_THAT(out_.replies[3], FailedWith(4u, StatusCode::kInvalidArgument,
                                          HasSubstr("holds \"text\"")));
}

TEST_F(CoordinatorTest, ALateDuplicateOfAnAcknowledgedCallIsNotApplied) {
  Register("b");
  Add(From("b", 1, 1, 1), "n", 5);
  Add(From("b", 1, 2, 2, /*acknowledged_through=*/1), "n", 5);
  TakeReplies();
  Add(From("b", 1, 3, 1), "n", 5);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  3u, StatusCode::kFailedPrecondition,
                  "sequence 1 was acknowledged before (through 1)")));
  EXPECT_EQ(coordinator_.Snapshot(now_).retained_replies, 1);
}

TEST_F(CoordinatorTest, ANumberOfAnotherVerbIsRefused) {
  Register("b");
  Add(From("b", 1, 1, 1), "n", 5);
  Set(From("b", 1, 2, 1), "k", "v");
  coordinator_.Join(From("b", 1, 3, 2), {.world_size = 2, .timeout = 30s}, now_,
                    out_);
  Add(From("b", 1, 4, 2), "n", 5);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(NumberTo(1u, 5),
                  FailedWith(2u, StatusCode::kInvalidArgument,
                             "sequence 1 of Set was used for Add before"),
                  FailedWith(4u, StatusCode::kInvalidArgument,
                             "sequence 2 of Add was used for Join "
                             "before")));
  EXPECT_EQ(coordinator_.Counts().keys, 1);
  EXPECT_EQ(coordinator_.Snapshot(now_).joined, 1);
}

TEST_F(CoordinatorTest, TheRetainedRepliesAreLimited) {
  Register("b");
  Add(From("b", 1, 1, 4096), "n", 5);
  Add(From("b", 1, 2, 4097), "n", 5);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(NumberTo(1u, 5),
                          FailedWith(2u, StatusCode::kResourceExhausted,
                                     "limit retained_replies is 4096, offered "
                                     "4097")));
}

// A member whose join waits for minutes can make other mutations.
TEST_F(CoordinatorTest, AParkedMutationDoesNotHoldUpThousandsOfOthers) {
  Register("b");
  const JoinRequest join = {.world_size = 2, .timeout = 600s};
  coordinator_.Join(From("b", 1, 1, 1), join, now_, out_);
  for (uint64_t n = 2; n <= 10'000; ++n) {
    Call call = From("b", 1, n, n, n - 1);
    call.unanswered = {SequenceNumber(1)};
    Add(call, "n", 1);
  }
  EXPECT_THAT(out_.replies.back(), NumberTo(10'000u, 9'999));
  EXPECT_EQ(coordinator_.Snapshot(now_).retained_replies, 2);
  TakeReplies();
  // A retry finds the first call until its answer is acknowledged as well.
  Call retry = From("b", 1, 10'001, 1, 10'000);
  retry.unanswered = {SequenceNumber(1)};
  coordinator_.Join(retry, join, now_, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(AnsweredTo(1u, StatusCode::kCancelled)));
  coordinator_.CancelWaiter(WaiterId(10'001), out_);
  Add(From("b", 1, 10'002, 10'001, 10'000), "n", 1);
  coordinator_.Join(From("b", 1, 10'003, 1, 10'000), join, now_, out_);
  EXPECT_THAT(out_.replies.back(),
              FailedWith(10'003u, StatusCode::kFailedPrecondition,
                         "sequence 1 was acknowledged before (through 10000)"));
}

TEST_F(CoordinatorTest, ANewIncarnationCountsItsCallsAnew) {
  Register("b", 1);
  Add(From("b", 1, 1, 1), "n", 5);
  Register("b", 2);
  Add(From("b", 2, 2, 1), "n", 5);
  EXPECT_THAT(TakeReplies(), ElementsAre(NumberTo(1u, 5), NumberTo(2u, 10)));
}

TEST_F(CoordinatorTest, TheRetryOfAParkedJoinTakesOver) {
  Register("a");
  Register("b");
  const JoinRequest request = {.world_size = 2, .timeout = 30s};
  coordinator_.Join(From("a", 1, 1, 1), request, now_, out_);
  coordinator_.Join(From("a", 1, 2, 1), request, now_, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(1u, StatusCode::kCancelled,
                                     "superseded by a retry of sequence 1")));
  coordinator_.Join(From("b", 1, 3, 1), request, now_, out_);
  EXPECT_THAT(TakeReplies(),
              UnorderedElementsAre(AnsweredTo(2u, StatusCode::kOk),
                                   AnsweredTo(3u, StatusCode::kOk)));
  coordinator_.Join(From("a", 1, 4, 1), request, now_, out_);
  const std::vector<Reply> again = TakeReplies();
  ASSERT_THAT(again, ElementsAre(AnsweredTo(4u, StatusCode::kOk)));
  EXPECT_EQ(std::get<FormationReply>(again[0].payload)->generation,
            Generation(1));
}

TEST_F(CoordinatorTest, AnArrivalOutlivesItsConnection) {
  Form("ab");
  Arrive(From("a", 1, 1, 1), 0);
  coordinator_.DetachWaiter(WaiterId(1), out_);
  EXPECT_THAT(TakeReplies(), ElementsAre(FailedWith(1u, StatusCode::kCancelled,
                                                    "connection closed")));
  Arrive(From("b", 1, 2, 1), 1);
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(2u, StatusCode::kOk)));
  Arrive(From("a", 1, 3, 1), 0);
  const std::vector<Reply> retried = TakeReplies();
  ASSERT_THAT(retried, ElementsAre(AnsweredTo(3u, StatusCode::kOk)));
  EXPECT_EQ(std::get<BarrierReply>(retried[0].payload)->instance, 1);
}

TEST_F(CoordinatorTest, TheRetryOfADetachedArrivalTakesOver) {
  Form("ab");
  Arrive(From("a", 1, 1, 1), 0);
  coordinator_.DetachWaiter(WaiterId(1), out_);
  Arrive(From("a", 1, 2, 1), 0);
  TakeReplies();
  Arrive(From("b", 1, 3, 1), 1);
  EXPECT_THAT(TakeReplies(),
              UnorderedElementsAre(AnsweredTo(2u, StatusCode::kOk),
                                   AnsweredTo(3u, StatusCode::kOk)));
}

TEST_F(CoordinatorTest, ACancelledArrivalIsWithdrawn) {
  Form("ab");
  Arrive(From("a", 1, 1, 1), 0);
  coordinator_.CancelWaiter(WaiterId(1), out_);
  Arrive(From("b", 1, 2, 1), 1);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(1u, StatusCode::kCancelled,
                                     "cancelled by the caller")));
  Arrive(From("a", 1, 3, 1), 0);
  EXPECT_THAT(TakeReplies(),
              UnorderedElementsAre(AnsweredTo(2u, StatusCode::kOk),
                                   AnsweredTo(3u, StatusCode::kOk)));
}

TEST_F(CoordinatorTest, ADisconnectedJoinFreesItsSeat) {
  Register("a");
  Register("b");
  coordinator_.Join(From("a", 1, 1, 1),
                    {.rank = Rank(0), .world_size = 2, .timeout = 30s}, now_,
                    out_);
  coordinator_.DetachWaiter(WaiterId(1), out_);
  coordinator_.Join(From("b", 1, 2, 1),
                    {.rank = Rank(0), .world_size = 3, .timeout = 30s}, now_,
                    out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(AnsweredTo(1u, StatusCode::kCancelled)));
  EXPECT_EQ(coordinator_.Snapshot(now_).joined, 1);
}

// Events.

TEST_F(CoordinatorTest, LossIsToldToAllOthersWithTheCulprit) {
  Form("abc");
  coordinator_.ReportFailure(From("b", 1, 1), {.text = "SIGSEGV"}, now_, out_);
  ASSERT_THAT(out_.events, SizeIs(1));
  EXPECT_THAT(*out_.events[0].audience,
              ElementsAre(MemberId("a"), MemberId("b"), MemberId("c")));
  const Event& event = out_.events[0].event;
  EXPECT_EQ(event.kind, EventKind::kFailed);
  EXPECT_EQ(event.member, MemberId("b"));
  EXPECT_EQ(event.rank, Rank(1));
  EXPECT_EQ(event.host, "host-b");
  EXPECT_EQ(event.pid, 7);
  EXPECT_EQ(event.cause, "SIGSEGV");
  EXPECT_EQ(event.generation, Generation(1));
  EXPECT_TRUE(event.generation_over);
}

TEST_F(CoordinatorTest, AReportCarriesItsVerdictAndTheFirstOneEnds) {
  Form("abc");
  Status verdict = DeadlineExceededError("");
  verdict.SetPayload("culprits", "rank 2");
  coordinator_.ReportFailure(From("b", 1, 1), {"rank 2 is stuck", verdict},
                             now_, out_);
  coordinator_.ReportFailure(From("a", 1, 2), {.text = "rank 1 is gone"}, now_,
                             out_);
  ASSERT_THAT(out_.events, SizeIs(2));
  EXPECT_EQ(out_.events[0].event.verdict, verdict);
  EXPECT_TRUE(out_.events[0].event.generation_over);
  EXPECT_TRUE(out_.events[1].event.verdict.ok());
  EXPECT_FALSE(out_.events[1].event.generation_over);
}

TEST_F(CoordinatorTest, WhoReportedListensUntilAllAreGone) {
  Form("ab");
  coordinator_.ReportFailure(From("b", 1, 1), {.text = "SIGSEGV"}, now_, out_);
  out_.Clear();
  coordinator_.Heartbeat(From("b", 1, 2), {}, now_, out_);
  coordinator_.Heartbeat(From("b", 2, 3), {}, now_, out_);
  Set(From("b", 1, 4), "k", "v");
  EXPECT_THAT(TakeReplies(),
              ElementsAre(AnsweredTo(2u, StatusCode::kOk),
                          AnsweredTo(3u, StatusCode::kFailedPrecondition),
                          AnsweredTo(4u, StatusCode::kFailedPrecondition)));
  coordinator_.Leave(From("a", 1, 5), "done", now_, out_);
  ASSERT_THAT(out_.events, SizeIs(1));
  EXPECT_EQ(out_.events[0].event.member, MemberId("a"));
  EXPECT_THAT(*out_.events[0].audience, ElementsAre(MemberId("b")));
}

TEST_F(CoordinatorTest, AGracefulLeaveIsToldAndDoesNotEndTheGeneration) {
  Form("ab");
  coordinator_.Leave(From("b", 1, 1), "done", now_, out_);
  ASSERT_THAT(out_.events, SizeIs(1));
  EXPECT_EQ(out_.events[0].event.kind, EventKind::kLeft);
  EXPECT_FALSE(out_.events[0].event.generation_over);
  EXPECT_TRUE(coordinator_.Snapshot(now_).generation_running);
  coordinator_.Leave(From("a", 1, 2), "done", now_, out_);
  EXPECT_FALSE(coordinator_.Snapshot(now_).generation_running);
}

TEST_F(CoordinatorTest, TheViewSaysWhoEndedAGenerationAndWhoIsMissing) {
  Form("ab");
  EXPECT_EQ(coordinator_.Snapshot(now_).generation_end, "");
  EXPECT_EQ(coordinator_.Snapshot(now_).rendezvous_waiting, "");
  coordinator_.ReportFailure(From("b", 1, 1), {.text = "out of memory"}, now_,
                             out_);
  EXPECT_THAT(coordinator_.Snapshot(now_).generation_end,
              AllOf(StartsWith("rank 1 (host-b, pid "),
                    HasSubstr(") failed: out of memory")));
  coordinator_.Join(From("a", 1, 1, 2),
                    {.rank = Rank(0), .world_size = 2, .timeout = 30s}, now_,
                    out_);
  EXPECT_THAT(coordinator_.Snapshot(now_ + 3s).rendezvous_waiting,
              StartsWith("rendezvous: 1 of 2 ranks joined in 3s; missing rank "
                         "1 (last held by \"b\" on host-b, failed"));
}

TEST_F(CoordinatorTest, TheViewSaysSinceWhenOneWaitsForASeatInAFullWorld) {
  const JoinRequest elastic = {
      .timeout = 30s, .min_world_size = 1, .max_world_size = 1};
  Register("a", 1);
  coordinator_.Join(From("a", 1, 1), elastic, now_, out_);
  ASSERT_TRUE(coordinator_.Snapshot(now_).generation_running);
  Register("b", 1);
  coordinator_.Join(From("b", 1, 1), elastic, now_, out_);
  EXPECT_EQ(coordinator_.Snapshot(now_ + 3s).rendezvous_waiting,
            "rendezvous: no seat became free in 3s: the world of 1 is full "
            "(generation 1 runs)");
}

TEST_F(CoordinatorTest, TheViewOfAHostHasItsMembersAlsoThoseThatAreGone) {
  Form("ab");
  coordinator_.ReportFailure(From("b", 1, 1), {.text = "out of memory"}, now_,
                             out_);
  const JobSnapshot view =
      coordinator_.Snapshot("host-b", Rank(0), /*rank_count=*/0, now_);
  EXPECT_EQ(view.lease, std::chrono::seconds(10));
  ASSERT_THAT(view.members, SizeIs(1));
  EXPECT_EQ(view.members[0].id, MemberId("b"));
  EXPECT_EQ(view.members[0].state, MemberState::kFailed);
  EXPECT_EQ(view.members[0].rank, Rank(1));
  EXPECT_THAT(
      coordinator_.Snapshot("host", Rank(0), /*rank_count=*/0, now_).members,
      SizeIs(0));
}

TEST_F(CoordinatorTest, WhatAMemberWasDoingEndsWithIt) {
  Form("ab");
  for (const char* member : {"a", "b"}) {
    coordinator_.Heartbeat(From(member, 1, 1),
                           {{.group = "world",
                             .last_enqueued = 386,
                             .last_completed = 385,
                             .current = "all_reduce",
                             .current_age = 1s}},
                           now_, out_);
  }
  coordinator_.Leave(From("b", 1, 2), "done", now_ + 2s, out_);
  const JobSnapshot view = coordinator_.Snapshot(now_ + 9s);
  ASSERT_THAT(view.members, SizeIs(2));
  EXPECT_THAT(view.members[0].last_progress,
              HasSubstr("in all_reduce for 10s"));
  EXPECT_THAT(view.members[1].last_progress, HasSubstr("in all_reduce for 3s"));
  EXPECT_EQ(view.members[0].progress_age, 9s);
  EXPECT_EQ(view.members[1].progress_age, 2s);
}

TEST_F(CoordinatorTest, TheSuccessorIsNotToldThatItReplaced) {
  Form("abc");
  Register("b", 2);
  ASSERT_THAT(out_.events, SizeIs(1));
  EXPECT_EQ(out_.events[0].event.kind, EventKind::kReplaced);
  EXPECT_THAT(*out_.events[0].audience,
              ElementsAre(MemberId("a"), MemberId("c")));
}

TEST_F(CoordinatorTest, WhoJoinsAgainEndsTheGenerationForTheOthers) {
  Form("abc");
  Arrive(From("a", 1, 1), 0);
  Arrive(From("b", 1, 2), 1);
  coordinator_.Join(From("b", 1, 3),
                    {.rank = Rank(1), .world_size = 3, .timeout = 30s}, now_,
                    out_);
  ASSERT_THAT(out_.events, SizeIs(1));
  EXPECT_THAT(*out_.events[0].audience,
              ElementsAre(MemberId("a"), MemberId("c")));
  EXPECT_EQ(out_.events[0].event.cause,
            "gave up generation 1 to join the next one");
  EXPECT_TRUE(out_.events[0].event.generation_over);
  EXPECT_THAT(TakeReplies(),
              UnorderedElementsAre(
                  FailedWith(1u, StatusCode::kAborted,
                             "barrier \"b\" #1: 1 of 3 ranks arrived in 0ms; "
                             "missing ranks 1 (host-b, left: gave up "
                             "generation 1 to join the next one), 2 (host-c); "
                             "first to arrive: rank 0"),
                  FailedWith(2u, StatusCode::kAborted,
                             "member \"b\" gave up generation 1 to join the "
                             "next one")));
}

TEST_F(CoordinatorTest, WhoReconnectsIsToldOnceMoreWhyTheGenerationEnded) {
  Form("ab");
  coordinator_.Disconnected(MemberId("a"), Incarnation(1), now_, out_);
  coordinator_.ReportFailure(From("b", 1, 1), {.text = "SIGSEGV"}, now_, out_);
  out_.Clear();
  Register("a");
  ASSERT_THAT(out_.events, SizeIs(1));
  EXPECT_THAT(*out_.events[0].audience, ElementsAre(MemberId("a")));
  EXPECT_EQ(out_.events[0].event.cause, "SIGSEGV");
}

TEST_F(CoordinatorTest, LossesOfOneTickShareOneAudience) {
  Form("abcd");
  // Four leases, because the silent members are on two hosts.
  Advance(40s, "ad");
  ASSERT_THAT(out_.events, SizeIs(2));
  EXPECT_EQ(out_.events[0].audience, out_.events[1].audience);
  EXPECT_THAT(*out_.events[0].audience,
              ElementsAre(MemberId("a"), MemberId("d")));
}

// Barriers and members.

TEST_F(CoordinatorTest, ABarrierThatIsDueWhenAMemberIsLostNamesItLost) {
  Form("ab");
  Arrive(From("a", 1, 1), 0, 10s);
  Advance(10s, "a");
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  1u, StatusCode::kAborted,
                  "barrier \"b\" #1: 1 of 2 ranks arrived in 10s; missing "
                  "rank 1 (host-b, lost: no heartbeat for 10s (lease 10s)); "
                  "first to arrive: rank 0")));
}

TEST_F(CoordinatorTest, ANewGenerationAbortsTheBarriersOfTheOldOne) {
  Form("abc");
  BarrierRequest request = {.barrier = "b",
                            .ranks = {Rank(0), Rank(1)},
                            .rank = Rank(0),
                            .timeout = 30s};
  coordinator_.Arrive(From("a", 1, 1), request, now_, out_);
  coordinator_.ReportFailure(From("c", 1, 2), {.text = "SIGSEGV"}, now_, out_);
  TakeReplies();
  coordinator_.Join(From("a", 1, 3), {.world_size = 2, .timeout = 1s}, now_,
                    out_);
  EXPECT_THAT(TakeReplies(), IsEmpty());
  coordinator_.Join(From("b", 1, 4), {.world_size = 2, .timeout = 1s}, now_,
                    out_);
  EXPECT_THAT(
      TakeReplies(),
      UnorderedElementsAre(AnsweredTo(3u, StatusCode::kOk),
                           AnsweredTo(4u, StatusCode::kOk),
                           FailedWith(1u, StatusCode::kAborted,
                                      "barrier \"b\" #1: generation 1 is over; "
                                      "rendezvous again")));
}

// State.

TEST_F(CoordinatorTest, AfterAllHaveLeftEveryTableIsEmpty) {
  Form("ab");
  Arrive(From("a", 1, 1, 1), 0);
  Get(From("b", 1, 2), "k", 60s);
  coordinator_.Leave(From("a", 1, 3), "", now_, out_);
  coordinator_.Leave(From("b", 1, 4), "", now_, out_);
  EXPECT_THAT(TakeReplies(), SizeIs(4));
  EXPECT_TRUE(coordinator_.Idle());
  const JobSnapshot job = coordinator_.Snapshot(now_);
  EXPECT_THAT(job.barriers, IsEmpty());
  EXPECT_EQ(job.waiters, 0);
  EXPECT_EQ(job.retained_replies, 0);
  coordinator_.Tick(now_ + 10min, out_);
  EXPECT_THAT(coordinator_.Snapshot(now_).members, IsEmpty());
  EXPECT_EQ(coordinator_.NextDeadline(), std::nullopt);
}

TEST_F(CoordinatorTest, TheSnapshotShowsWhoIsMissing) {
  Form("ab");
  Arrive(From("a", 1, 1), 0);
  const JobSnapshot job = coordinator_.Snapshot(now_ + 2s);
  EXPECT_EQ(job.epoch, CoordinatorEpoch(77));
  EXPECT_EQ(job.generation, Generation(1));
  EXPECT_EQ(job.world_size, 2);
  ASSERT_THAT(job.members, SizeIs(2));
  EXPECT_EQ(job.members[1].rank, Rank(1));
  EXPECT_EQ(job.members[1].heard_ago, 2s);
  ASSERT_THAT(job.barriers, SizeIs(1));
  EXPECT_EQ(job.barriers[0].open_for, 2s);
  EXPECT_EQ(job.barriers[0].remaining, 28s);
  ASSERT_THAT(job.barriers[0].missing, SizeIs(1));
  EXPECT_EQ(job.barriers[0].missing[0].host, "host-b");
}

TEST_F(CoordinatorTest, TheNextDeadlineIsTheEarliestOfAllTables) {
  EXPECT_EQ(coordinator_.NextDeadline(), std::nullopt);
  Register("a");
  EXPECT_EQ(coordinator_.NextDeadline(), t0 + 10s);
  Get(From("a", 1, 1), "k", 5s);
  EXPECT_EQ(coordinator_.NextDeadline(), t0 + 5s);
  coordinator_.Join(From("a", 1, 2), {.world_size = 2, .timeout = 2s}, now_,
                    out_);
  EXPECT_EQ(coordinator_.NextDeadline(), t0 + 2s);
}

}  // namespace
}  // namespace muster::coordinator::core
