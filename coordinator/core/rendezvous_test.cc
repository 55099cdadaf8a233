#include "coordinator/core/rendezvous.h"

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

class RendezvousTest : public testing::Test {
 protected:
  RendezvousTest() {
    int64_t pid = 1;
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      std::vector<Event> departed;
      EXPECT_EQ(
          members_
              .Register(From(name, 1, 1),
                        {.host = std::string("host-") + name, .pid = pid++}, t0,
                        departed, notes_)
              .status(),
          OkStatus());
    }
  }

  void TearDown() override {
    EXPECT_EQ(rendezvous_.CheckInvariants(), OkStatus());
    EXPECT_EQ(quota_.parked(), rendezvous_.waiters());
  }

  std::vector<Reply> TakeReplies() {
    std::vector<Reply> replies;
    replies.swap(out_.replies);
    return replies;
  }

  // Joins as the coordinator does. The waiter's number is that of the join.
  void Join(const std::string& member, std::optional<int32_t> rank,
            int32_t world_size, Duration timeout = 30s) {
    JoinRequest request;
    if (rank.has_value()) request.rank = Rank(*rank);
    request.world_size = world_size;
    request.address = "at-" + member;
    request.timeout = timeout;
    Join(member, std::move(request));
  }

  // Joins in the elastic form.
  void JoinElastic(const std::string& member, int32_t min, int32_t max,
                   Duration last_call = 30s, Duration timeout = 100s) {
    Join(member, {.timeout = timeout,
                  .min_world_size = min,
                  .max_world_size = max,
                  .last_call = last_call});
  }

  void Join(const std::string& member, JoinRequest request) {
    if (!rendezvous_.Join(From(member, 1, ++waiter_), std::move(request), now_,
                          out_)) {
      return;
    }
    rendezvous_.Abandon(MemberId(member));
    TryForm();
  }

  void TryForm() {
    const FormationReply formed = rendezvous_.TryForm(now_, out_);
    if (formed == nullptr) return;
    for (const auto& [id, member] : members_.members()) members_.ClearRank(id);
    for (size_t i = 0; i < formed->world.size(); ++i) {
      members_.AssignRank(formed->world[i].member,
                          Rank(static_cast<int32_t>(i)), formed->generation);
    }
  }

  // Lets time pass and processes what is due.
  void Advance(Duration duration) {
    now_ += duration;
    TryForm();
    rendezvous_.Expire(now_, out_);
  }

  // Makes the member fail. Returns whether that ended the generation.
  bool Fail(const std::string& member) {
    std::vector<Event> departed;
    members_.Fail(*members_.Find(MemberId(member)), {.text = "SIGSEGV"}, now_,
                  departed, notes_);
    const bool ended = rendezvous_.MemberDeparted(departed[0], out_);
    TryForm();
    return ended;
  }

  // Returns the members by rank.
  std::string World() const {
    std::string world;
    for (const Seat& seat : rendezvous_.formation()->world) {
      world += seat.member.value();
    }
    return world;
  }

  Limits limits_;
  WaiterQuota quota_{100};
  Journal journal_{/*on=*/false};
  Membership members_{MembershipOptions(), &limits_, &journal_};
  Rendezvous rendezvous_{&limits_, &quota_, &members_, &journal_};
  Outbox out_;
  Outbox notes_;
  uint64_t waiter_ = 0;
  Instant now_ = t0;
};

TEST_F(RendezvousTest, WhoWaitsAndWhoIsMissingIsShown) {
  EXPECT_THAT(rendezvous_.FirstMissing(8), IsEmpty());
  Join("c", 3, 5);
  Join("a", 0, 5);
  EXPECT_THAT(rendezvous_.FirstWaiters(8),
              ElementsAre(MemberId("a"), MemberId("c")));
  EXPECT_THAT(rendezvous_.FirstWaiters(1), ElementsAre(MemberId("a")));
  EXPECT_THAT(rendezvous_.FirstMissing(8),
              ElementsAre(Rank(1), Rank(2), Rank(4)));
  EXPECT_THAT(rendezvous_.FirstMissing(2), ElementsAre(Rank(1), Rank(2)));
  EXPECT_THAT(rendezvous_.FindMissing(Rank(2), 8),
              ElementsAre(Rank(2), Rank(4)));
  EXPECT_THAT(rendezvous_.FindMissing(Rank(3), 1), IsEmpty());
  EXPECT_THAT(rendezvous_.FindMissing(Rank(-5), 1 << 30),
              ElementsAre(Rank(1), Rank(2), Rank(4)));
  Join("d", std::nullopt, 5);
  EXPECT_THAT(rendezvous_.FindMissing(Rank(2), 8), IsEmpty());
}

TEST_F(RendezvousTest, WhoIsMissingInAnElasticOneIsNotKnown) {
  JoinElastic("a", 2, 3);
  EXPECT_THAT(rendezvous_.FirstWaiters(8), ElementsAre(MemberId("a")));
  EXPECT_THAT(rendezvous_.FirstMissing(8), IsEmpty());
  EXPECT_THAT(rendezvous_.FindMissing(Rank(0), 8), IsEmpty());
}

TEST_F(RendezvousTest, AllAreAnsweredTogetherWithTheSameFormation) {
  Join("b", 1, 3);
  Join("c", 2, 3);
  EXPECT_THAT(TakeReplies(), IsEmpty());
  Join("a", 0, 3);
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, ElementsAre(AnsweredTo(3u, StatusCode::kOk),
                                   AnsweredTo(1u, StatusCode::kOk),
                                   AnsweredTo(2u, StatusCode::kOk)));
  const auto& formation = std::get<FormationReply>(replies[0].payload);
  EXPECT_EQ(formation, std::get<FormationReply>(replies[2].payload));
  EXPECT_EQ(formation->generation, Generation(1));
  EXPECT_EQ(World(), "abc");
  EXPECT_EQ(formation->world[1].host, "host-b");
  EXPECT_EQ(formation->world[1].pid, 2);
  EXPECT_EQ(formation->world[1].incarnation, Incarnation(1));
  EXPECT_EQ(formation->world[1].address, "at-b");
}

TEST_F(RendezvousTest, MembersWithoutAWishGetTheLowestFreeRanks) {
  Join("d", std::nullopt, 4);
  Join("b", std::nullopt, 4);
  Join("c", 0, 4);
  Join("a", 2, 4);
  EXPECT_EQ(World(), "cdab");
}

TEST_F(RendezvousTest, RankOutOfRange) {
  Join("a", 4, 4);
  Join("a", -1, 4);
  Join("a", 0, 0);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(
          FailedWith(1u, StatusCode::kInvalidArgument,
                     "rendezvous: member \"a\" (host-a, pid 1) asks for rank 4 "
                     "of world size 4 (ranks 0 to 3)"),
          FailedWith(2u, StatusCode::kInvalidArgument,
                     "rendezvous: member \"a\" (host-a, pid 1) asks for rank "
                     "-1 of world size 4 (ranks 0 to 3)"),
          FailedWith(3u, StatusCode::kInvalidArgument,
                     "rendezvous: member \"a\" (host-a, pid 1) asks for no "
                     "world size; set world_size, or min_world_size and "
                     "max_world_size")));
}

TEST_F(RendezvousTest, DisagreementAboutTheWorldSizeNamesBoth) {
  Join("a", 0, 4);
  Join("b", 1, 8);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  2u, StatusCode::kInvalidArgument,
                  "rendezvous: member \"b\" (host-b, pid 2) asks for world "
                  "size 8, member \"a\" (host-a, pid 1) for 4")));
  EXPECT_EQ(rendezvous_.waiters(), 1);
}

TEST_F(RendezvousTest, ARankClaimedTwiceNamesBoth) {
  Join("a", 1, 4);
  Join("b", 1, 4);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  2u, StatusCode::kAlreadyExists,
                  "rendezvous: rank 1 is claimed twice: by member \"a\" "
                  "(host-a, pid 1) and by member \"b\" (host-b, pid 2)")));
}

TEST_F(RendezvousTest, ANewerJoinOfAMemberSupersedesItsOlderOne) {
  Join("a", 1, 4);
  Join("a", 0, 2);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(FailedWith(1u, StatusCode::kCancelled,
                             "superseded by a newer join of member \"a\"")));
  Join("b", 1, 2);
  EXPECT_EQ(World(), "ab");
}

TEST_F(RendezvousTest, TheRankOfALiveMemberCannotBeTaken) {
  Join("a", 0, 2);
  Join("b", 1, 2);
  TakeReplies();
  Join("c", 1, 2);
  Join("d", std::nullopt, 2);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(
          FailedWith(3u, StatusCode::kAlreadyExists,
                     "rendezvous: rank 1 of running generation 1 is held by "
                     "live member \"b\" (host-b, pid 2); member \"c\" (host-c, "
                     "pid 3) cannot take it"),
          FailedWith(4u, StatusCode::kAlreadyExists,
                     "rendezvous: all 2 ranks of running generation 1 are held "
                     "by live members; member \"d\" (host-d, pid 4) cannot "
                     "join")));
}

// The holder may be gone, and the claimant may be the same process, restarted.
TEST_F(RendezvousTest, WhoClaimsTheRankOfADisconnectedMemberWaitsForItsLoss) {
  Join("a", 0, 2);
  Join("b", 1, 2);
  TakeReplies();
  members_.Disconnected(MemberId("b"), Incarnation(1), now_, notes_);
  Join("c", 1, 2);
  EXPECT_THAT(TakeReplies(), IsEmpty());
  EXPECT_TRUE(Fail("b"));
  Join("a", 0, 2);
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(4u, StatusCode::kOk),
                                         AnsweredTo(3u, StatusCode::kOk)));
  EXPECT_EQ(World(), "ac");
}

TEST_F(RendezvousTest, WhoClaimsTheRankOfOneThatComesBackIsRefusedThen) {
  Join("a", 0, 2);
  Join("b", 1, 2);
  TakeReplies();
  members_.Disconnected(MemberId("b"), Incarnation(1), now_, notes_);
  Join("c", 1, 2);
  std::vector<Event> departed;
  ASSERT_TRUE(members_
                  .Register(From("b", 1, 9), {.host = "host-b", .pid = 2}, now_,
                            departed, notes_)
                  .ok());
  rendezvous_.MemberReturned(MemberId("a"), out_);
  EXPECT_THAT(TakeReplies(), IsEmpty());
  rendezvous_.MemberReturned(MemberId("b"), out_);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(FailedWith(
          3u, StatusCode::kAlreadyExists,
          "rendezvous: rank 1 of running generation 1 is held by live member "
          "\"b\" (host-b, pid 2); member \"c\" (host-c, pid 3) cannot take "
          "it")));
  EXPECT_EQ(World(), "ab");
}

TEST_F(RendezvousTest, AWorldOfOneIsNotTakenFromADisconnectedMember) {
  Join("a", 0, 1);
  TakeReplies();
  members_.Disconnected(MemberId("a"), Incarnation(1), now_, notes_);
  Join("b", 0, 1);
  EXPECT_THAT(TakeReplies(), IsEmpty());
  EXPECT_EQ(World(), "a");
  EXPECT_TRUE(Fail("a"));
  EXPECT_EQ(World(), "b");
}

TEST_F(RendezvousTest, TimeoutListsTheMissingRanks) {
  Join("a", 0, 4);
  Join("b", std::nullopt, 4);
  Join("d", 3, 4, 60s);
  rendezvous_.Expire(t0 + 30s, out_);
  const std::string text =
      "rendezvous: 3 of 4 ranks joined in 30s; missing rank 2";
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(1u, StatusCode::kDeadlineExceeded, text),
                          FailedWith(2u, StatusCode::kDeadlineExceeded, text)));
  EXPECT_EQ(rendezvous_.NextDeadline(), t0 + 60s);
}

TEST_F(RendezvousTest, TimeoutNamesAtMostEightRanks) {
  Join("a", 3, 100);
  rendezvous_.Expire(t0 + 30s, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  1u, StatusCode::kDeadlineExceeded,
                  "rendezvous: 1 of 100 ranks joined in 30s; missing ranks 0, "
                  "1, 2, 4, 5, 6, 7, 8 and 91 more")));
}

TEST_F(RendezvousTest, TimeoutTellsWhoHeldTheMissingRankLast) {
  Join("a", 0, 2);
  Join("b", 1, 2);
  Fail("b");
  TakeReplies();
  Join("a", 0, 2);
  rendezvous_.Expire(t0 + 30s, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  3u, StatusCode::kDeadlineExceeded,
                  "rendezvous: 1 of 2 ranks joined in 30s; missing rank 1 "
                  "(last held by \"b\" on host-b, failed: SIGSEGV)")));
}

TEST_F(RendezvousTest, TimeoutCarriesAllMissingRanksAndDescribesThirtyTwo) {
  Join("a", 0, 2);
  Join("b", 1, 2);
  Fail("b");
  TakeReplies();
  Join("a", 0, 50);
  rendezvous_.Expire(t0 + 30s, out_);
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, SizeIs(1));
  const auto* absence = std::get_if<AbsenceReply>(&replies[0].payload);
  ASSERT_NE(absence, nullptr);
  ASSERT_THAT((*absence)->described, SizeIs(32));
  const AbsentRank& held = (*absence)->described[0];
  EXPECT_EQ(held.rank, Rank(1));
  EXPECT_EQ(held.member, MemberId("b"));
  EXPECT_EQ(held.host, "host-b");
  EXPECT_EQ(held.cause, "SIGSEGV");
  EXPECT_EQ((*absence)->described[31].rank, Rank(32));
  EXPECT_EQ((*absence)->described[31].member, MemberId());
  EXPECT_EQ(RangesText((*absence)->others, 8), "33-49");
}

TEST_F(RendezvousTest, AfterAnEndSurvivorsAndNewcomersFormTheNextGeneration) {
  Join("a", 0, 2);
  Join("b", 1, 2);
  EXPECT_TRUE(Fail("b"));
  EXPECT_FALSE(rendezvous_.running());
  TakeReplies();
  Join("a", 0, 2);
  Join("c", 1, 2);
  EXPECT_THAT(TakeReplies(), SizeIs(2));
  EXPECT_EQ(rendezvous_.generation(), Generation(2));
  EXPECT_EQ(World(), "ac");
}

TEST_F(RendezvousTest, TheSeatOfADepartedMemberIsFree) {
  Join("a", 0, 2);
  EXPECT_FALSE(Fail("a"));
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(FailedWith(1u, StatusCode::kFailedPrecondition,
                             "member \"a\" (incarnation 1) failed: SIGSEGV")));
  Join("b", 0, 3);
  Join("c", 1, 3);
  EXPECT_THAT(TakeReplies(), IsEmpty());
}

TEST_F(RendezvousTest, AMemberThatJoinsAgainEndsItsGeneration) {
  Join("a", 0, 2);
  Join("b", 1, 2);
  EXPECT_FALSE(rendezvous_.Abandon(MemberId("b")));
  EXPECT_TRUE(rendezvous_.running());
  Join("b", 1, 2);
  EXPECT_FALSE(rendezvous_.Abandon(MemberId("b")));
  EXPECT_FALSE(rendezvous_.running());
  Join("a", 0, 2);
  EXPECT_EQ(rendezvous_.generation(), Generation(2));
  EXPECT_EQ(World(), "ab");
}

TEST_F(RendezvousTest, TheDepartureOfAnOldMemberDoesNotEndANewGeneration) {
  Join("a", 0, 2);
  Join("b", 1, 2);
  Event old;
  old.kind = EventKind::kLost;
  old.member = MemberId("b");
  old.rank = Rank(1);
  old.generation = Generation(1);
  Join("b", 1, 2);
  Join("a", 0, 2);
  EXPECT_FALSE(rendezvous_.MemberDeparted(old, out_));
  EXPECT_TRUE(rendezvous_.running());
}

TEST_F(RendezvousTest, TheMinimumWaitsForTheEndOfTheLastCall) {
  JoinElastic("b", 2, 4, 10s);
  Advance(20s);
  JoinElastic("a", 2, 4, 10s);
  EXPECT_EQ(rendezvous_.NextDeadline(), t0 + 30s);
  Advance(9999ms);
  EXPECT_THAT(TakeReplies(), IsEmpty());
  Advance(1ms);
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(1u, StatusCode::kOk),
                                         AnsweredTo(2u, StatusCode::kOk)));
  EXPECT_EQ(World(), "ba");
}

TEST_F(RendezvousTest, TheMaximumFormsAtOnce) {
  JoinElastic("a", 1, 2);
  EXPECT_FALSE(rendezvous_.running());
  JoinElastic("b", 1, 2);
  EXPECT_EQ(World(), "ab");
}

TEST_F(RendezvousTest, ASpareWaitsAndIsSeatedBehindThoseWhoReturn) {
  JoinElastic("a", 1, 2, 0s);  // alone: there is no last call
  JoinElastic("c", 1, 2, 0s);
  EXPECT_EQ(rendezvous_.waiters(), 1);
  JoinElastic("d", 1, 2, 0s);
  JoinElastic("a", 1, 2, 0s);
  EXPECT_EQ(World(), "ac");
  EXPECT_EQ(*rendezvous_.first_waiter(), MemberId("d"));
  EXPECT_EQ(rendezvous_.forming_world_size(), 2);
}

TEST_F(RendezvousTest, ANewcomerHasNoSeatOfAMemberThatIsOnItsWay) {
  JoinElastic("a", 1, 2);
  JoinElastic("b", 1, 2);
  JoinElastic("c", 1, 2);
  JoinElastic("a", 1, 2);
  EXPECT_FALSE(rendezvous_.running());
  JoinElastic("b", 1, 2);
  EXPECT_EQ(World(), "ab");
  JoinElastic("a", 1, 2);
  Fail("b");
  EXPECT_EQ(World(), "ac");
}

TEST_F(RendezvousTest, ASmallerWorldKeepsTheLowestRanks) {
  for (const char* name : {"a", "b", "c", "d"}) JoinElastic(name, 4, 4);
  for (const char* name : {"d", "c", "b"}) JoinElastic(name, 1, 2);
  EXPECT_EQ(World(), "dc");
  rendezvous_.Close(From("a", 1, 90), "", out_);
  EXPECT_EQ(rendezvous_.closed(),
            "member \"a\" (host-a, pid 1): no reason given");
}

TEST_F(RendezvousTest, WhoHadARankKeepsItBesideClaims) {
  Join("a", 0, 3);
  Join("b", 1, 3);
  Join("c", 2, 3);
  Join("c", std::nullopt, 3);
  Join("b", std::nullopt, 3);
  Join("a", 2, 3);
  EXPECT_EQ(World(), "cba");
}

TEST_F(RendezvousTest, TheElasticTextNamesAtMostEightOfTheMissing) {
  limits_.world_size = 20;
  for (int i = 0; i < 10; ++i) {
    std::vector<Event> departed;
    const std::string name(1, static_cast<char>('k' + i));
    ASSERT_TRUE(members_
                    .Register(From(name, 1, 1), {.host = "h", .pid = 1}, t0,
                              departed, notes_)
                    .ok());
    Join(name, i, 10);
  }
  Fail("k");
  TakeReplies();
  JoinElastic("a", 2, 4, 30s, 5s);
  Advance(5s);
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_THAT(GetMessage(replies[0]),
              ::testing::StartsWith(
                  "rendezvous: 1 of at least 2 members joined in 5s; missing "
                  "ranks of generation 1: 0 (last held by \"k\" on h, failed: "
                  "SIGSEGV), 1 (last held by \"l\" on h, alive"));
  EXPECT_THAT(GetMessage(replies[0]), ::testing::EndsWith(" and 2 more"));
}

TEST_F(RendezvousTest, ACloseFailsAllJoinsAndLetsTheGenerationRun) {
  JoinElastic("a", 1, 1);
  JoinElastic("b", 1, 1);
  TakeReplies();
  rendezvous_.Close(From("a", 1, 90), "finished", out_);
  rendezvous_.Close(From("b", 1, 91), "never", out_);
  Join("a", 0, 1);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(
          FailedWith(2u, StatusCode::kOutOfRange,
                     "rendezvous: closed by member \"a\" (host-a, pid 1): "
                     "finished"),
          FailedWith(3u, StatusCode::kOutOfRange,
                     "rendezvous: closed by member \"a\" (host-a, pid 1): "
                     "finished")));
  EXPECT_TRUE(rendezvous_.running());
}

TEST_F(RendezvousTest, Limits) {
  limits_.world_size = 4;
  Join("a", 0, 5);
  limits_.parked_time = 1s;
  Join("a", 0, 4);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(1u, StatusCode::kResourceExhausted,
                                     "limit world_size is 4, offered 5 (member "
                                     "\"a\")"),
                          FailedWith(2u, StatusCode::kResourceExhausted,
                                     "limit parked_time is 1s, offered 30s")));
}

}  // namespace
}  // namespace muster::coordinator::core
