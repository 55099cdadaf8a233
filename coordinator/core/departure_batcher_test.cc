#include "coordinator/core/departure_batcher.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

std::set<int32_t> GetRanks(const Event& event) {
  if (event.together == nullptr) return {event.rank->value()};
  std::set<int32_t> ranks;
  ForEachRank(event.together->ranks,
              [&](Rank rank) { ranks.insert(rank.value()); });
  return ranks;
}

// A job whose members m0, m1, ... have the ranks 0, 1, ... of a generation.
class DepartureBatcherTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(coordinator_.CheckInvariants(), OkStatus());
  }

  static CoordinatorOptions Durable() {
    CoordinatorOptions options;
    options.durable = true;
    return options;
  }

  static std::string Name(int32_t i) { return "m" + std::to_string(i); }

  void Register(int32_t i, Coordinator& coordinator) {
    coordinator.Register(From(Name(i), 1, 1), {.host = "host"}, now_, out_);
  }

  void Join(int32_t i, int32_t size) {
    coordinator_.Join(From(Name(i), 1, 1),
                      {.rank = Rank(i), .world_size = size, .timeout = 30s},
                      now_, out_);
  }

  void Form(int32_t size) {
    for (int32_t i = 0; i < size; ++i) {
      Register(i, coordinator_);
      Join(i, size);
    }
    ASSERT_TRUE(coordinator_.Snapshot(now_).generation_running);
    out_.Clear();
  }

  void Leave(int32_t i, const std::string& why = "finished") {
    coordinator_.Leave(From(Name(i), 1, 1), why, now_, out_);
  }

  // Ticks at every deadline, as a driver does.
  void AdvanceTo(Instant end) {
    for (std::optional<Instant> due = coordinator_.NextDeadline();
         due.has_value() && *due <= end; due = coordinator_.NextDeadline()) {
      now_ = std::max(now_, *due);
      coordinator_.Tick(now_, out_);
    }
    now_ = end;
  }

  std::vector<Publication> TakeEvents() {
    std::vector<Publication> events = std::move(out_.events);
    out_.Clear();
    return events;
  }

  Instant now_ = t0;
  const CoordinatorOptions options_ = Durable();
  Coordinator coordinator_{CoordinatorEpoch(77), options_};
  Outbox out_;
};

TEST_F(DepartureBatcherTest, TheFirstIsToldAtOnceAndTheNextOnesTogether) {
  Form(5);
  Leave(4, "done");
  std::vector<Publication> told = TakeEvents();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].event.together, nullptr);
  EXPECT_EQ(told[0].event.cause, "done");
  Leave(1, "tired");
  Leave(2);
  EXPECT_THAT(TakeEvents(), IsEmpty());
  // One pause for each of the four remaining members.
  ASSERT_EQ(coordinator_.NextDeadline(),
            now_ + 4 * options_.membership.departure_pause_per_member);
  AdvanceTo(*coordinator_.NextDeadline());
  told = TakeEvents();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(*told[0].audience, ElementsAre(MemberId("m0"), MemberId("m3")));
  EXPECT_EQ(told[0].event.kind, EventKind::kLeft);
  EXPECT_EQ(told[0].event.member, MemberId("m1"));
  EXPECT_THAT(GetRanks(told[0].event), UnorderedElementsAre(1, 2));
  ASSERT_THAT(told[0].event.together->described, SizeIs(2));
  EXPECT_EQ(told[0].event.together->described[0].cause, "tired");
  EXPECT_EQ(told[0].event.together->described[1].cause, "finished");
}

TEST_F(DepartureBatcherTest, AfterAQuietTimeALeaveIsToldAtOnceAgain) {
  Form(3);
  Leave(2);
  AdvanceTo(now_ + 2 * kDeparturePauseMax);
  TakeEvents();
  Leave(1);
  EXPECT_THAT(TakeEvents(), SizeIs(1));
}

// The other leaves are told before the event that ends the generation.
TEST_F(DepartureBatcherTest, NobodyIsForgottenWhenAGenerationEnds) {
  Form(4);
  Leave(3);
  Leave(2);
  TakeEvents();
  coordinator_.ReportFailure(From(Name(1), 1, 1), {.text = "broken"}, now_,
                             out_);
  const std::vector<Publication> told = TakeEvents();
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_THAT(GetRanks(told[0].event), UnorderedElementsAre(2));
  EXPECT_EQ(told[1].event.kind, EventKind::kFailed);
  EXPECT_TRUE(told[1].event.generation_over);
}

// Even after the end of the generation, a leave comes before later events.
TEST_F(DepartureBatcherTest, WhatIsToldAtOnceDoesNotOvertakeALeave) {
  Form(6);
  coordinator_.ReportFailure(From(Name(5), 1, 1), {.text = "broken"}, now_,
                             out_);
  Leave(4);
  Leave(3);
  TakeEvents();
  coordinator_.ReportFailure(From(Name(2), 1, 1), {.text = "me too"}, now_,
                             out_);
  const std::vector<Publication> told = TakeEvents();
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_THAT(GetRanks(told[0].event), UnorderedElementsAre(3));
  EXPECT_EQ(told[1].event.kind, EventKind::kFailed);
  EXPECT_FALSE(told[1].event.generation_over);
}

TEST_F(DepartureBatcherTest, NobodyIsForgottenWhenTheNextGenerationForms) {
  Form(5);
  coordinator_.ReportFailure(From(Name(4), 1, 1), {.text = "broken"}, now_,
                             out_);
  Leave(3);
  for (const int32_t i : {0, 1}) Join(i, 3);
  Leave(2);
  TakeEvents();
  Register(7, coordinator_);
  coordinator_.Join(From(Name(7), 1, 1),
                    {.rank = Rank(2), .world_size = 3, .timeout = 30s}, now_,
                    out_);
  ASSERT_EQ(coordinator_.Snapshot(now_).generation, Generation(2));
  const std::vector<Publication> told = TakeEvents();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].event.generation, Generation(1));
  EXPECT_THAT(GetRanks(told[0].event), UnorderedElementsAre(2));
}

// Nobody waits for events about a member that has failed.
TEST_F(DepartureBatcherTest, NothingIsPendingWhenAllHaveGone) {
  Form(4);
  coordinator_.ReportFailure(From(Name(3), 1, 1), {.text = "broken"}, now_,
                             out_);
  for (const int32_t i : {0, 1, 2}) Leave(i);
  std::set<int32_t> left;
  for (const Publication& told : TakeEvents()) {
    if (told.event.kind != EventKind::kLeft) continue;
    EXPECT_THAT(*told.audience, Contains(MemberId("m3")));
    for (const int32_t rank : GetRanks(told.event)) {
      EXPECT_TRUE(left.insert(rank).second);
    }
  }
  EXPECT_THAT(left, UnorderedElementsAre(0, 1, 2));
}

// Each loss is told at the end of its own grace.
TEST_F(DepartureBatcherTest, LossesAreToldAtOnceAndOneByOne) {
  Form(4);
  std::vector<Instant> lost_at;
  for (const int32_t i : {1, 2, 3}) {
    coordinator_.Disconnected(MemberId(Name(i)), Incarnation(1), now_, out_);
    lost_at.push_back(now_ + options_.membership.reconnect_grace);
    now_ += 1ms;
  }
  for (const Instant at : lost_at) {
    AdvanceTo(at - 1ns);
    EXPECT_THAT(TakeEvents(), IsEmpty());
    AdvanceTo(at);
    const std::vector<Publication> told = TakeEvents();
    ASSERT_THAT(told, SizeIs(1));
    EXPECT_EQ(told[0].event.kind, EventKind::kLost);
    EXPECT_EQ(told[0].event.together, nullptr);
  }
}

// The member may have missed some leaves. It is told of the others once,
// together with everybody.
TEST_F(DepartureBatcherTest, WhoRegistersAgainIsToldOfAllThatLeft) {
  Form(6);
  Leave(5);
  Leave(4);
  AdvanceTo(now_ + kDeparturePauseMax);
  Leave(3);
  Leave(1);
  TakeEvents();
  Register(0, coordinator_);
  std::vector<Publication> told = TakeEvents();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(*told[0].audience, ElementsAre(MemberId("m0")));
  EXPECT_TRUE(told[0].again);
  const std::set<int32_t> again = GetRanks(told[0].event);
  AdvanceTo(now_ + kDeparturePauseMax);
  told = TakeEvents();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_FALSE(told[0].again);
  const std::set<int32_t> later = GetRanks(told[0].event);
  EXPECT_THAT(later, UnorderedElementsAre(1));
  EXPECT_THAT(again, UnorderedElementsAre(3, 4, 5));
}

TEST_F(DepartureBatcherTest, WhatEndedAGenerationIsToldAgain) {
  Form(3);
  coordinator_.ReportFailure(From(Name(1), 1, 1), {.text = "broken"}, now_,
                             out_);
  std::vector<Publication> told = TakeEvents();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_FALSE(told[0].again);
  Register(0, coordinator_);
  told = TakeEvents();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].event.kind, EventKind::kFailed);
  EXPECT_TRUE(told[0].again);
}

TEST_F(DepartureBatcherTest, ARestartForgetsNobodyThatLeft) {
  Form(5);
  Leave(4);
  Leave(3);
  Coordinator next(CoordinatorEpoch(78), options_);
  next.Restore(coordinator_.TakeChanges(), now_);
  TakeEvents();
  for (const int32_t i : {0, 1, 2}) Register(i, next);
  const std::vector<Publication> told = TakeEvents();
  ASSERT_THAT(told, SizeIs(3));
  for (const Publication& one : told) {
    EXPECT_THAT(GetRanks(one.event), UnorderedElementsAre(3, 4));
  }
}

// Includes a member whose record is gone because it came back with another
// incarnation.
TEST_F(DepartureBatcherTest, ARestartForgetsNobodyThatLeftAndCameBack) {
  Form(5);
  Leave(4);
  Leave(3);
  coordinator_.Register(From(Name(3), 2, 1), {.host = "other"}, now_, out_);
  Coordinator next(CoordinatorEpoch(78), options_);
  next.Restore(coordinator_.TakeChanges(), now_);
  TakeEvents();
  Register(0, next);
  const std::vector<Publication> told = TakeEvents();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(GetRanks(told[0].event), UnorderedElementsAre(3, 4));
  for (const Event& event : told[0].event.together->described) {
    EXPECT_EQ(event.incarnation, Incarnation(1));
    EXPECT_EQ(event.host, "host");
  }
}

TEST_F(DepartureBatcherTest,
       AGenerationKnowsNothingOfThoseThatLeftTheOneBefore) {
  Form(3);
  Leave(2);
  for (const int32_t i : {0, 1}) Join(i, 2);
  TakeEvents();
  Register(0, coordinator_);
  EXPECT_THAT(TakeEvents(), IsEmpty());
}

TEST_F(DepartureBatcherTest, OfManyAFewAreDescribedAndTheirTextsAreCut) {
  Form(100);
  Leave(99);
  TakeEvents();
  for (int32_t i = 0; i < 50; ++i) Leave(i, std::string(4000, 'x'));
  AdvanceTo(now_ + kDeparturePauseMax);
  const std::vector<Publication> told = TakeEvents();
  ASSERT_THAT(told, SizeIs(1));
  const LeftTogether& together = *told[0].event.together;
  EXPECT_EQ(together.count, 50);
  EXPECT_THAT(together.ranks, ElementsAre(0u, 50u));
  EXPECT_THAT(together.described, SizeIs(kDescribedDeparturesMax));
  for (const Event& event : together.described) {
    EXPECT_THAT(event.cause.size(), Le(kDepartureTextMax));
  }
}

// Counts how often each member is told of others, and of which. The members
// leave in random order, `apart` from one another.
class EndOfJobTest : public DepartureBatcherTest,
                     public testing::WithParamInterface<Duration> {};

TEST_P(EndOfJobTest, MembersAreToldAFewTimesEach) {
  constexpr int32_t kSize = 400;
  Form(kSize);
  std::map<MemberId, int> times;
  std::map<MemberId, size_t> ranks;
  const auto count = [&] {
    for (const Publication& told : TakeEvents()) {
      for (const MemberId& member : *told.audience) {
        ++times[member];
        ranks[member] += GetRanks(told.event).size();
      }
    }
  };
  for (int32_t i = 0; i < kSize - 1; ++i) {
    Leave(i * 379 % kSize);
    AdvanceTo(now_ + GetParam());
    count();
  }
  AdvanceTo(now_ + kDeparturePauseMax);
  count();
  // 4, 8, 16, 32 and 40 ms after the first, and then every 40 ms.
  const int tellings = 6 + static_cast<int>(kSize * GetParam() / 40ms);
  for (const auto& [member, told] : times) EXPECT_LE(told, tellings);
  // The last member has been told of all the others.
  EXPECT_EQ(ranks.at(MemberId(Name((kSize - 1) * 379 % kSize))),
            static_cast<size_t>(kSize - 1));
}

INSTANTIATE_TEST_SUITE_P(Paces, EndOfJobTest,
                         testing::Values(0ms, 1ms, 5ms, 20ms));

}  // namespace
}  // namespace muster::coordinator::core
