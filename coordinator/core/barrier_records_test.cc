// The records that barriers write, and the state that they restore.

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kSize = 50;

// The number of records of each kind that a step has written or erased.
struct Written {
  int series = 0;
  int decisions = 0;
  int taken = 0;
};

class BarrierRecordsTest : public testing::Test {
 protected:
  BarrierRecordsTest() {
    for (int32_t i = 0; i < kSize; ++i) {
      coordinator_.Register(MakeCall(i), {.host = "h"}, now_, out_);
    }
    for (int32_t i = 0; i < kSize; ++i) {
      coordinator_.Join(MakeCall(i),
                        {.rank = Rank(i), .world_size = kSize, .timeout = 30s},
                        now_, out_);
    }
    Take();
  }

  void TearDown() override {
    EXPECT_EQ(coordinator_.CheckInvariants(), OkStatus());
  }

  static CoordinatorOptions Durable() {
    CoordinatorOptions options;
    options.durable = true;
    return options;
  }

  Call MakeCall(int32_t i) {
    return From("m" + std::to_string(i), 1, ++waiter_);
  }

  void Arrive(int32_t rank, Coordinator& coordinator,
              const std::string& barrier = "b", Duration timeout = 0s) {
    BarrierRequest request;
    request.barrier = barrier;
    request.rank = Rank(rank);
    request.timeout = timeout;
    coordinator.Arrive(MakeCall(rank), request, now_, out_);
  }

  Written Take() {
    out_.Clear();
    Written written;
    for (Record& record : coordinator_.TakeChanges()) {
      if (std::holds_alternative<SeriesRecord>(record)) ++written.series;
      if (std::holds_alternative<DecisionRecord>(record)) ++written.decisions;
      if (std::holds_alternative<TakenRecord>(record)) ++written.taken;
      Store(record);
    }
    return written;
  }

  // Stores or erases the record under its name.
  void Store(const Record& record) {
    std::string name = std::to_string(record.index());
    if (const auto* member = std::get_if<MemberRecord>(&record)) {
      name += member->id.value();
    } else if (const auto* series = std::get_if<SeriesRecord>(&record)) {
      name += series->barrier;
    } else if (const auto* decision = std::get_if<DecisionRecord>(&record)) {
      name += decision->barrier + "/" + std::to_string(decision->instance);
    } else if (const auto* taken = std::get_if<TakenRecord>(&record)) {
      name += taken->barrier + "/" + std::to_string(taken->rank.value());
    }
    stored_.erase(name);
    if (!IsErased(record)) stored_.emplace(name, record);
  }

  Instant now_ = t0;
  uint64_t waiter_ = 0;
  Coordinator coordinator_{CoordinatorEpoch(1), Durable()};
  Outbox out_;
  std::map<std::string, Record> stored_;
};

TEST_F(BarrierRecordsTest, ALateCallerWritesWhatItHasTaken) {
  Arrive(0, coordinator_);
  const Written failed = Take();
  EXPECT_EQ(failed.series, 1);
  EXPECT_EQ(failed.decisions, 1);
  for (int32_t rank = 1; rank < kSize - 1; ++rank) {
    Arrive(rank, coordinator_);
    const Written late = Take();
    EXPECT_EQ(late.series, 0);
    EXPECT_EQ(late.decisions, 0);
    EXPECT_EQ(late.taken, 1);
  }
  // After the last rank nobody needs the decision any more.
  Arrive(kSize - 1, coordinator_);
  EXPECT_EQ(Take().decisions, 1);
  // The next decision writes the series as a whole.
  Arrive(0, coordinator_);
  const Written next = Take();
  EXPECT_EQ(next.series, 1);
  EXPECT_EQ(next.taken, kSize - 1);
  EXPECT_EQ(stored_.count("7b"), 1u);
}

// The decision is not written, because all ranks receive it at once.
TEST_F(BarrierRecordsTest, ABarrierThatAllReachWritesItsNumberAlone) {
  for (int round = 0; round < 3; ++round) {
    for (int32_t rank = 0; rank < kSize; ++rank) {
      Arrive(rank, coordinator_, "b", 30s);
    }
    const Written released = Take();
    EXPECT_EQ(released.series, 1);
    EXPECT_EQ(released.decisions, 0);
    EXPECT_EQ(released.taken, 0);
  }
}

// Records that were not written are not erased: the decision about "open" is
// made by the end.
TEST_F(BarrierRecordsTest, WhatWasWrittenIsErased) {
  Arrive(0, coordinator_);
  Arrive(0, coordinator_, "open", 30s);
  EXPECT_EQ(Take().decisions, 1);
  for (int32_t i = 0; i < kSize; ++i) {
    coordinator_.Leave(MakeCall(i), "done", now_, out_);
  }
  EXPECT_EQ(Take().decisions, 1);
  for (const auto& [name, record] : stored_) {
    EXPECT_FALSE(std::holds_alternative<DecisionRecord>(record)) << name;
  }
}

TEST_F(BarrierRecordsTest, ADepartureWritesNoBarrier) {
  for (int i = 0; i < 20; ++i) {
    Arrive(0, coordinator_, "b" + std::to_string(i));
  }
  Take();
  coordinator_.Leave(MakeCall(7), "done", now_, out_);
  const Written written = Take();
  EXPECT_EQ(written.series, 0);
  EXPECT_EQ(written.decisions, 0);
  EXPECT_EQ(written.taken, 0);
}

TEST_F(BarrierRecordsTest, ARestartKnowsWhoHasHadTheDecision) {
  Arrive(0, coordinator_);
  Arrive(1, coordinator_);
  Take();
  Coordinator next(CoordinatorEpoch(2), Durable());
  std::vector<Record> records;
  for (const auto& [name, record] : stored_) records.push_back(record);
  next.Restore(std::move(records), now_);
  EXPECT_EQ(next.CheckInvariants(), OkStatus());
  // Ranks 0 and 1 are at the second instance; rank 2 asks for the first.
  Arrive(0, next, "b", 30s);
  Arrive(1, next, "b", 30s);
  EXPECT_EQ(next.Counts().open_barriers, 1);
  EXPECT_TRUE(out_.replies.empty());
  Arrive(2, next, "b", 30s);
  ASSERT_EQ(out_.replies.size(), 1u);
  EXPECT_EQ(out_.replies[0].status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::get<BarrierReply>(out_.replies[0].payload)->instance, 1);
}

// Includes ranks that were written separately.
TEST_F(BarrierRecordsTest, NothingIsLeftOfTheBarriersOfAGenerationThatIsOver) {
  Arrive(0, coordinator_);
  Arrive(1, coordinator_);
  Take();
  coordinator_.ReportFailure(MakeCall(0), {.text = "broken"}, now_, out_);
  for (int32_t i = 1; i < kSize; ++i) {
    coordinator_.Join(
        MakeCall(i),
        {.rank = Rank(i - 1), .world_size = kSize - 1, .timeout = 30s}, now_,
        out_);
  }
  Take();
  for (const auto& [name, record] : stored_) {
    EXPECT_FALSE(std::holds_alternative<SeriesRecord>(record));
    EXPECT_FALSE(std::holds_alternative<DecisionRecord>(record));
    EXPECT_FALSE(std::holds_alternative<TakenRecord>(record));
  }
}

}  // namespace
}  // namespace muster::coordinator::core
