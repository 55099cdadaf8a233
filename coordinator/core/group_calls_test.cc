#include "coordinator/core/group_calls.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using State = GroupCallState;

// A world of four ranks, on the hosts host-a to host-d.
class GroupCallTableTest : public testing::Test {
 protected:
  GroupCallTableTest() {
    auto formation = std::make_shared<Formation>();
    formation->generation = Generation(3);
    for (int32_t rank = 0; rank < 4; ++rank) {
      const std::string name(1, static_cast<char>('a' + rank));
      const std::string host = "host-" + name;
      std::vector<Event> departed;
      EXPECT_TRUE(members_
                      .Register(From(name, 1, 1),
                                {.host = host, .pid = 10 + rank}, t0, departed,
                                out_)
                      .ok());
      formation->world.push_back(
          {MemberId(name), Incarnation(1), host, 10 + rank, ""});
    }
    formation_ = formation;
    out_.Clear();
    calls_.Reset(formation_, /*is_new=*/true);
  }

  void TearDown() override { EXPECT_EQ(calls_.CheckInvariants(), OkStatus()); }

  // A call of all ranks, the number-th in their order, that makes a group of
  // `ranks`.
  static GroupCall Numbered(int64_t number, const std::vector<int>& ranks) {
    GroupCall call = Local(absl::StrCat(number), ranks);
    call.series = "all";
    call.number = number;
    call.callers = 4;
    return call;
  }

  // A call of these ranks only.
  static GroupCall Local(const std::string& name,
                         const std::vector<int>& ranks) {
    GroupCall call;
    call.series = name;
    call.arguments_hash = static_cast<uint64_t>(name[0]);
    for (const int rank : ranks) {
      call.ranks.emplace_back(rank);
      call.arguments_hash =
          call.arguments_hash * 10 + static_cast<uint64_t>(rank) + 1;
    }
    call.arguments =
        absl::StrCat("makes group ", name, " of ", absl::StrJoin(ranks, ","));
    return call;
  }

  Status Note(int rank, GroupCall call, State state = State::kWaits) {
    call.state = state;
    return calls_.Note(Rank(rank), std::move(call), now_, out_);
  }

  Status StillWaits(int rank, const GroupCall& call) {
    return Note(rank,
                {.series = call.series,
                 .number = call.number,
                 .instance = call.instance},
                State::kStillWaits);
  }

  Instant now_ = t0;
  Limits limits_;
  Journal journal_{/*on=*/true};
  Membership members_{MembershipOptions(), &limits_, &journal_};
  GroupCallTable calls_{&limits_, &members_};
  FormationReply formation_;
  Outbox out_;
};

TEST_F(GroupCallTableTest, ACallOfWhichAllMeanTheSameIsForgotten) {
  for (const GroupCall& call :
       {Numbered(1, {0, 1}), Local("a", {0, 1, 2, 3})}) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(StillWaits(0, call), OkStatus());
      EXPECT_EQ(Note(rank, call, rank < 2 ? State::kWaits : State::kPasses),
                OkStatus());
      EXPECT_EQ(calls_.size(), rank < 3 ? 1 : 0);
    }
    EXPECT_EQ(calls_.bytes(), 0);
  }
  EXPECT_TRUE(out_.notices.empty());
}

TEST_F(GroupCallTableTest, AllThatWaitAreToldWhichRankPassedWhat) {
  const GroupCall all = Numbered(1, {0, 1, 2, 3});
  const GroupCall odd = Numbered(1, {0, 1, 2});
  EXPECT_EQ(Note(0, all), OkStatus());
  EXPECT_EQ(Note(1, odd), OkStatus());
  const Status told = StillWaits(1, odd);
  EXPECT_EQ(told, InvalidArgumentError(
                      "ranks do not mean the same by one call: rank 0 (host-a, "
                      "pid 10) makes group 1 of 0,1,2,3, rank 1 (host-b, pid "
                      "11) makes group 1 of 0,1,2"));
  ASSERT_EQ(out_.notices.size(), 1);
  EXPECT_EQ(out_.notices[0].kind, NoticeKind::kGroupCallConflict);
  // Also those that come later, and each once.
  EXPECT_EQ(Note(2, all), told);
  EXPECT_EQ(StillWaits(2, all), OkStatus());
  EXPECT_EQ(StillWaits(0, all), told);
  EXPECT_EQ(StillWaits(0, all), OkStatus());
  EXPECT_EQ(Note(3, all), told);
  EXPECT_EQ(calls_.size(), 0);
  EXPECT_EQ(out_.notices.size(), 1);
}

TEST_F(GroupCallTableTest, OnlyThoseThatWaitInVainAreTold) {
  const GroupCall left = Numbered(1, {0, 1});
  const GroupCall right = Numbered(1, {2, 3});
  // Parts of one split; rank 1 has another one.
  const GroupCall odd = Numbered(1, {1, 3});
  for (const bool odd_first : {true, false}) {
    if (odd_first) {
      EXPECT_EQ(Note(1, odd), OkStatus());
    }
    EXPECT_EQ(Note(3, right), OkStatus());
    EXPECT_EQ(StillWaits(3, right), OkStatus());
    EXPECT_EQ(Note(2, right), OkStatus());
    if (!odd_first) {
      EXPECT_EQ(Note(1, odd), OkStatus());
    }
    EXPECT_TRUE(IsInvalidArgument(StillWaits(1, odd)));
    EXPECT_EQ(StillWaits(3, right), OkStatus());
    EXPECT_EQ(StillWaits(2, right), OkStatus());
    // Rank 0 waits for rank 1.
    EXPECT_EQ(Note(0, left), OkStatus());
    EXPECT_TRUE(IsInvalidArgument(StillWaits(0, left)));
    calls_.Reset(formation_, /*is_new=*/true);
  }
}

TEST_F(GroupCallTableTest, WhoDoesNotWaitIsToldNothing) {
  // Rank 0 is not in the group that it makes.
  EXPECT_EQ(Note(0, Numbered(1, {1, 3}), State::kPasses), OkStatus());
  EXPECT_EQ(Note(1, Numbered(1, {0, 1})), OkStatus());
  const Status told = StillWaits(1, Numbered(1, {0, 1}));
  EXPECT_THAT(std::string(told.message()),
              AllOf(HasSubstr("of 0,1"), HasSubstr("of 1,3")));
  EXPECT_EQ(Note(3, Numbered(1, {1, 3})), told);
  EXPECT_EQ(Note(2, Numbered(1, {1, 3}), State::kPasses), OkStatus());
}

TEST_F(GroupCallTableTest, WhatOneRankIsRefusedIsToldToTheOthersOnce) {
  for (const bool numbered : {true, false}) {
    const GroupCall call = numbered ? Numbered(1, {0, 1}) : Local("a", {0, 1});
    EXPECT_EQ(Note(0, call), OkStatus());
    EXPECT_EQ(Note(1,
                   {.series = call.series,
                    .number = call.number,
                    .callers = call.callers,
                    .arguments = "no such backend"},
                   State::kRefused),
              OkStatus());
    const Status told = StillWaits(0, call);
    EXPECT_TRUE(IsInvalidArgument(told)) << told;
    EXPECT_THAT(std::string(told.message()),
                HasSubstr("rank 1 (host-b, pid 11) was refused: no such "
                          "backend, rank 0 (host-a, pid 10) makes"));
    EXPECT_EQ(StillWaits(0, call), OkStatus());
    // A call of all ranks is not repeated.
    if (numbered) continue;
    EXPECT_EQ(Note(0, call), OkStatus());
    EXPECT_EQ(Note(1, call), OkStatus());
  }
}

TEST_F(GroupCallTableTest, RanksThatWaitForEachOtherInDifferentCallsAreTold) {
  const GroupCall a = Local("a", {0, 1, 2});
  const GroupCall b = Local("b", {0, 1});
  EXPECT_EQ(Note(0, a), OkStatus());
  EXPECT_EQ(Note(1, b), OkStatus());
  // Rank 1 may have a thread that comes to `a` in a moment.
  EXPECT_EQ(StillWaits(0, a), OkStatus());
  const Status told = StillWaits(1, b);
  EXPECT_EQ(told, InvalidArgumentError(
                      "ranks do not mean the same by one call: rank 0 (host-a, "
                      "pid 10) makes group a of 0,1,2, rank 1 (host-b, pid 11) "
                      "makes group b of 0,1"));
  EXPECT_EQ(StillWaits(0, a), told);
  EXPECT_EQ(Note(2, a), told);
  // They repeat the call.
  EXPECT_EQ(Note(0, a), OkStatus());
  EXPECT_EQ(Note(1, a), OkStatus());
  EXPECT_EQ(StillWaits(0, a), OkStatus());
  EXPECT_EQ(Note(2, a), OkStatus());
  EXPECT_EQ(StillWaits(0, a), OkStatus());
}

TEST_F(GroupCallTableTest, TheSameMistakeIsToldAgain) {
  const GroupCall a = Local("a", {0, 1});
  const GroupCall b = Local("b", {0, 1});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Note(0, a), OkStatus());
    EXPECT_EQ(Note(1, b), OkStatus());
    EXPECT_EQ(StillWaits(0, a), OkStatus());
    EXPECT_TRUE(IsInvalidArgument(StillWaits(1, b)));
    EXPECT_TRUE(IsInvalidArgument(StillWaits(0, a)));
  }
}

TEST_F(GroupCallTableTest, WhoComesToBothCallsIsInNobodysWay) {
  const GroupCall a = Local("a", {0, 1});
  const GroupCall b = Local("b", {0, 1});
  EXPECT_EQ(Note(0, a), OkStatus());
  EXPECT_EQ(Note(1, b), OkStatus());
  EXPECT_EQ(StillWaits(0, a), OkStatus());
  EXPECT_EQ(Note(1, a), OkStatus());
  EXPECT_EQ(StillWaits(1, b), OkStatus());
  EXPECT_EQ(StillWaits(0, a), OkStatus());
}

TEST_F(GroupCallTableTest, WhoWasStoppedAtTheEndOfACallIsNotInTheNextOnesWay) {
  const std::vector<std::pair<GroupCall, GroupCall>> pairs = {
      {Local("a", {0, 1}), Local("b", {0, 1})},
      {Local("c", {0, 1}), Numbered(3, {0, 1})}};
  for (const auto& [first, second] : pairs) {
    EXPECT_EQ(Note(1, first), OkStatus());
    EXPECT_EQ(StillWaits(1, first), OkStatus());
    EXPECT_EQ(Note(0, first), OkStatus());
    EXPECT_EQ(Note(0, second), OkStatus());
    EXPECT_EQ(StillWaits(0, second), OkStatus());
    EXPECT_EQ(StillWaits(1, first), OkStatus());
    EXPECT_EQ(StillWaits(0, second), OkStatus());
    EXPECT_EQ(Note(1, second), OkStatus());
  }
  // A repetition of the same name.
  GroupCall again = Local("a", {0, 1});
  EXPECT_EQ(Note(1, again), OkStatus());
  EXPECT_EQ(Note(0, again), OkStatus());
  again.instance = 1;
  EXPECT_EQ(Note(0, again), OkStatus());
  again.instance = 0;
  EXPECT_EQ(StillWaits(1, again), OkStatus());
  EXPECT_EQ(calls_.size(), 2);  // with call 3 of all ranks
}

TEST_F(GroupCallTableTest, WhoGaveUpOrIsSilentWaitsInNoCall) {
  const GroupCall a = Local("a", {0, 1});
  const GroupCall b = Local("b", {0, 1});
  EXPECT_EQ(Note(0, a), OkStatus());
  EXPECT_EQ(StillWaits(0, a), OkStatus());
  EXPECT_EQ(Note(0, a, State::kGaveUp), OkStatus());
  EXPECT_EQ(calls_.size(), 0);
  EXPECT_EQ(Note(1, b), OkStatus());
  EXPECT_EQ(StillWaits(1, b), OkStatus());
  EXPECT_EQ(Note(0, a), OkStatus());
  EXPECT_EQ(StillWaits(0, Local("none", {0, 1})), OkStatus());
  now_ += std::chrono::seconds(4);
  EXPECT_EQ(StillWaits(0, a), OkStatus());
  EXPECT_TRUE(IsInvalidArgument(StillWaits(1, b)));
}

TEST_F(GroupCallTableTest, WhatDiffersOnlyInRanksThatAreGoneIsTheSame) {
  std::vector<Event> departed;
  members_.Leave(*members_.Find(MemberId("d")), "done", t0, departed, out_);
  EXPECT_EQ(Note(0, Numbered(1, {0, 1, 2})), OkStatus());
  EXPECT_EQ(Note(1, Numbered(1, {0, 1, 2, 3})), OkStatus());
  EXPECT_EQ(StillWaits(0, Numbered(1, {})), OkStatus());
  const GroupCall a = Local("a", {0, 1, 2});
  const GroupCall b = Local("b", {0, 1, 2, 3});
  EXPECT_EQ(Note(0, a), OkStatus());
  EXPECT_EQ(Note(1, b), OkStatus());
  EXPECT_EQ(StillWaits(0, a), OkStatus());
  EXPECT_EQ(StillWaits(1, b), OkStatus());
  // Nor does a rank that is gone count.
  members_.Leave(*members_.Find(MemberId("c")), "done", t0, departed, out_);
  EXPECT_EQ(Note(2, Numbered(2, {0, 2})), OkStatus());
  EXPECT_EQ(Note(0, Numbered(2, {0, 1, 2})), OkStatus());
  EXPECT_EQ(StillWaits(0, Numbered(2, {})), OkStatus());
}

TEST_F(GroupCallTableTest, WhoCameToTheSameUnderAnotherNumberIsNotOdd) {
  // An earlier call failed on rank 0 only.
  const auto named = [](int64_t number, const std::string& name) {
    GroupCall call = Local(name, {0, 1});
    call.arguments_hash = name[0];
    call.series = "all";
    call.number = number;
    return call;
  };
  EXPECT_EQ(Note(0, named(2, "a")), OkStatus());
  EXPECT_EQ(Note(1, named(1, "a")), OkStatus());
  EXPECT_EQ(StillWaits(0, named(2, "a")), OkStatus());
  EXPECT_EQ(StillWaits(1, named(1, "a")), OkStatus());
  EXPECT_EQ(Note(1, named(2, "b")), OkStatus());
  EXPECT_EQ(Note(0, named(3, "b")), OkStatus());
  EXPECT_EQ(StillWaits(1, named(2, "b")), OkStatus());
  // Rank 0 has completed "b", in which rank 1 was seen waiting.
  EXPECT_EQ(Note(0, Local("c", {0, 1})), OkStatus());
  EXPECT_EQ(StillWaits(0, Local("c", {0, 1})), OkStatus());
}

TEST_F(GroupCallTableTest, AllMayHaveComeBeforeTheyAreCompared) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Note(rank, rank == 2 ? Numbered(1, {0, 1, 2})
                                   : Numbered(1, {0, 1, 2, 3})),
              OkStatus());
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(IsInvalidArgument(StillWaits(rank, Numbered(1, {}))));
  }
  EXPECT_EQ(calls_.size(), 0);
}

TEST_F(GroupCallTableTest, ACallThatCannotBeDoneIsComparedFirst) {
  const GroupCall all = Numbered(1, {0, 1, 2, 3});
  EXPECT_EQ(Note(0, all), OkStatus());
  EXPECT_EQ(Note(1, Numbered(1, {0, 1, 2})), OkStatus());
  const Status why = InvalidArgumentError("other ranks");
  const Status told = calls_.NoteFailure(
      Rank(1), {.series = "all", .number = 1, .callers = 4}, why, now_, out_);
  EXPECT_THAT(std::string(told.message()), HasSubstr("of 0,1,2,3"));
  EXPECT_EQ(StillWaits(0, all), told);
  // Here nothing differs.
  EXPECT_EQ(Note(0, Numbered(2, {0, 1})), OkStatus());
  EXPECT_EQ(Note(1, Numbered(2, {0, 1})), OkStatus());
  EXPECT_EQ(
      calls_.NoteFailure(Rank(1), {.series = "all", .number = 2, .callers = 4},
                         why, now_, out_),
      why);
  EXPECT_THAT(std::string(StillWaits(0, Numbered(2, {0, 1})).message()),
              HasSubstr("was refused: other ranks, rank 0"));
}

TEST_F(GroupCallTableTest, TheOldestCallsAreForgotten) {
  limits_.group_calls = 2;
  const GroupCall first = Local("1", {0, 1});
  EXPECT_EQ(Note(0, first), OkStatus());
  EXPECT_EQ(StillWaits(0, first), OkStatus());
  EXPECT_EQ(Note(0, Local("2", {0, 1})), OkStatus());
  // Used last, so it stays.
  EXPECT_EQ(StillWaits(0, first), OkStatus());
  EXPECT_EQ(Note(1, Local("3", {0, 1})), OkStatus());
  EXPECT_EQ(calls_.size(), 2);
  EXPECT_EQ(StillWaits(1, Local("3", {0, 1})), OkStatus());
  // Rank 1 may have come to the forgotten one.
  EXPECT_EQ(StillWaits(0, first), OkStatus());
  // Arguments are compared all the same.
  EXPECT_EQ(Note(1, Local("1", {0, 1, 2})), OkStatus());
  EXPECT_TRUE(IsInvalidArgument(StillWaits(1, first)));
  limits_.group_call_bytes = 1000;
  GroupCall large = Local("4", {0, 1});
  large.arguments = std::string(2000, 'x');
  EXPECT_EQ(Note(0, large), OkStatus());
  EXPECT_EQ(calls_.size(), 0);
  EXPECT_EQ(calls_.bytes(), 0);
}

TEST_F(GroupCallTableTest, MalformedCallsAreRefused) {
  const auto expect_refused = [&](const GroupCall& call,
                                  const std::string& why) {
    EXPECT_EQ(Note(0, call), InvalidArgumentError(why));
  };
  expect_refused(Local("a", {0, 4}),
                 "groups: call \"a\": rank 4 is outside of world size 4 or "
                 "does not ascend");
  expect_refused(Local("a", {0, 0}),
                 "groups: call \"a\": rank 0 is outside of world size 4 or "
                 "does not ascend");
  expect_refused({.series = "a", .number = -1},
                 "groups: a number of call \"a\" is negative");
  expect_refused({.series = "a\n"},
                 "groups: call \"a\\n\" has a control character");
  EXPECT_EQ(calls_.size(), 0);
}

TEST_F(GroupCallTableTest, TextsOfUsersArePrintableAndNotTooLong) {
  GroupCall call = Numbered(1, {0, 1});
  call.arguments = absl::StrCat("makes \x1b", std::string(10000, 'x'));
  EXPECT_EQ(Note(0, call), OkStatus());
  EXPECT_EQ(Note(1, Numbered(1, {0, 1, 2})), OkStatus());
  const Status told = StillWaits(1, Numbered(1, {}));
  EXPECT_THAT(std::string(told.message()), HasSubstr("makes \\x1bxxx"));
  EXPECT_LT(told.message().size(), 5000);
}

}  // namespace
}  // namespace muster::coordinator::core
