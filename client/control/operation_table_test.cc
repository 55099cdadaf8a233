#include "client/control/operation_table.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::Pair;

PendingOperationPtr Make(v1::Operation operation,
                         milliseconds timeout = seconds(5)) {
  return std::make_shared<PendingOperation>(std::move(operation),
                                            Deadline::After(timeout, "test"));
}

PendingOperationPtr AddSet(OperationTable& table, const std::string& key) {
  v1::Operation operation;
  operation.mutable_set()->set_key(key);
  PendingOperationPtr pending = Make(std::move(operation));
  EXPECT_TRUE(table.Add(pending).ok());
  return pending;
}

PendingOperationPtr AddGet(OperationTable& table, const std::string& key,
                           milliseconds timeout = seconds(5)) {
  v1::Operation operation;
  operation.mutable_get()->set_key(key);
  PendingOperationPtr pending = Make(std::move(operation), timeout);
  EXPECT_TRUE(table.Add(pending).ok());
  return pending;
}

void Answer(OperationTable& table, const PendingOperation& pending) {
  v1::Result result;
  result.set_id(pending.operation.id());
  table.Complete(std::move(result));
}

// Packs and returns the keys in the message, with "cancel" for cancellations.
std::vector<std::string> Send(OperationTable& table) {
  Batch batch;
  table.Pack(Clock::now(), batch);
  std::vector<std::string> keys;
  for (const v1::Operation& operation : batch.request().operations()) {
    if (operation.has_cancel()) {
      keys.push_back("cancel");
    } else {
      keys.push_back(operation.has_set() ? operation.set().key()
                                         : operation.get().key());
    }
  }
  return keys;
}

TEST(OperationTableTest, PacksEverythingThatWaitsInOrder) {
  OperationTable table;
  AddSet(table, "a");
  AddGet(table, "b");
  AddSet(table, "c");
  EXPECT_THAT(Send(table), ElementsAre("a", "b", "c"));
  EXPECT_THAT(Send(table), ElementsAre());
}

TEST(OperationTableTest, NumbersMutationsOnly) {
  OperationTable table;
  EXPECT_EQ(AddSet(table, "a")->operation.set().sequence(), 1);
  EXPECT_EQ(AddGet(table, "b")->sequence, 0);
  EXPECT_EQ(AddSet(table, "c")->operation.set().sequence(), 2);
}

// The table lists the requests by name and must not miss a new one.
TEST(OperationTableTest,
     EveryKindOfRequestGetsItsNumberAndTimeoutAndIsCancelled) {
  const auto* const requests =
      v1::Operation::descriptor()->FindOneofByName("request");
  ASSERT_NE(requests, nullptr);
  int numbered = 0;
  int timed = 0;
  for (int i = 0; i < requests->field_count(); ++i) {
    const auto* const field = requests->field(i);
    const auto* const type = field->message_type();
    const auto* const sequence = type->FindFieldByName("sequence");
    const auto* const timeout = type->FindFieldByName("timeout");
    v1::Operation operation;
    const auto* const reflection = operation.GetReflection();
    reflection->MutableMessage(&operation, field);
    const PendingOperationPtr pending = Make(std::move(operation), seconds(5));
    OperationTable table;
    ASSERT_TRUE(table.Add(pending).ok());
    {
      Batch batch;
      table.Pack(Clock::now(), batch);
    }
    const auto& sent = reflection->GetMessage(pending->operation, field);
    EXPECT_EQ(pending->sequence, sequence == nullptr ? 0u : 1u)
        << field->name();
    if (sequence != nullptr) {
      ++numbered;
      EXPECT_EQ(sent.GetReflection()->GetUInt64(sent, sequence), 1u)
          << field->name();
    }
    if (timeout != nullptr) {
      ++timed;
      EXPECT_TRUE(sent.GetReflection()->HasField(sent, timeout))
          << field->name();
    }
    // An operation that may be parked is cancelled.
    table.Abandon(*pending);
    EXPECT_EQ(table.HasWaiting(), timeout != nullptr) << field->name();
  }
  EXPECT_GE(numbered, 14);
  EXPECT_GE(timed, 7);
}

TEST(OperationTableTest, SendsWhatIsUnansweredAgainInOrderAndUnderOldNumbers) {
  OperationTable table;
  const auto first = AddSet(table, "a");
  const auto second = AddSet(table, "b");
  const auto third = AddSet(table, "c");
  EXPECT_THAT(Send(table), ElementsAre("a", "b", "c"));
  Answer(table, *second);
  AddSet(table, "d");
  table.Requeue();
  Batch batch;
  table.Pack(Clock::now(), batch);
  ASSERT_EQ(batch.request().operations_size(), 3);
  EXPECT_EQ(batch.request().operations(0).set().sequence(), 1);
  EXPECT_EQ(batch.request().operations(1).set().sequence(), 3);
  EXPECT_EQ(batch.request().operations(2).set().key(), "d");
}

TEST(OperationTableTest, AcknowledgesOnlyWithoutGaps) {
  OperationTable table;
  const auto first = AddSet(table, "a");
  const auto second = AddSet(table, "b");
  Send(table);
  Answer(table, *second);
  EXPECT_EQ(table.acknowledged_through(), 0);
  Answer(table, *first);
  EXPECT_EQ(table.acknowledged_through(), 2);
}

TEST(OperationTableTest, NamesAMutationThatIsUnansweredForLong) {
  OperationTable table;
  const auto parked = AddSet(table, "parked");
  const auto acknowledge = [&] {
    Batch batch;
    table.Pack(Clock::now(), batch);
    return std::make_pair(
        batch.request().acknowledged_through(),
        std::vector<uint64_t>(batch.request().unanswered().begin(),
                              batch.request().unanswered().end()));
  };
  for (size_t i = 1; i < OperationTable::kWindowMax; ++i) {
    Answer(table, *AddSet(table, "a"));
  }
  EXPECT_THAT(acknowledge(), Pair(0, ElementsAre()));
  Answer(table, *AddSet(table, "a"));
  EXPECT_THAT(acknowledge(),
              Pair(OperationTable::kWindowMax + 1, ElementsAre(1)));
  Answer(table, *AddSet(table, "a"));
  EXPECT_THAT(acknowledge(),
              Pair(OperationTable::kWindowMax + 2, ElementsAre(1)));
  Answer(table, *parked);
  EXPECT_THAT(acknowledge(),
              Pair(OperationTable::kWindowMax + 2, ElementsAre()));
}

TEST(OperationTableTest, ForgetsAStragglerThatWasGivenUp) {
  OperationTable table;
  const auto parked = AddSet(table, "parked");
  Send(table);
  for (size_t i = 0; i < OperationTable::kWindowMax; ++i) {
    Answer(table, *AddSet(table, "a"));
  }
  EXPECT_THAT(table.stragglers(), ElementsAre(1));
  table.Abandon(*parked);
  EXPECT_THAT(table.stragglers(), ElementsAre());
}

TEST(OperationTableTest, GivingUpAMutationClosesItsGap) {
  OperationTable table;
  const auto first = AddSet(table, "a");
  const auto second = AddSet(table, "b");
  Send(table);
  Answer(table, *second);
  table.Abandon(*first);
  EXPECT_EQ(table.acknowledged_through(), 2);
  EXPECT_EQ(table.unanswered(), 0);
}

TEST(OperationTableTest, CancelsAParkedOperationThatWasSent) {
  OperationTable table;
  const auto sent = AddGet(table, "a");
  Send(table);
  table.Abandon(*sent);
  Batch batch;
  table.Pack(Clock::now(), batch);
  ASSERT_EQ(batch.request().operations_size(), 1);
  EXPECT_EQ(batch.request().operations(0).cancel().id(), sent->operation.id());
}

TEST(OperationTableTest, NeverSendsWhatWasGivenUpBefore) {
  OperationTable table;
  const auto waiting = AddGet(table, "a");
  AddGet(table, "b");
  table.Abandon(*waiting);
  EXPECT_THAT(Send(table), ElementsAre("b"));
}

TEST(OperationTableTest, ALateAnswerToWhatWasGivenUpIsIgnored) {
  OperationTable table;
  const auto sent = AddGet(table, "a");
  Send(table);
  table.Abandon(*sent);
  v1::Result result;
  result.set_id(sent->operation.id());
  EXPECT_EQ(table.Complete(std::move(result)), nullptr);
}

TEST(OperationTableTest, SendsTheTimeThatIsLeft) {
  OperationTable table;
  const auto get = AddGet(table, "a", seconds(5));
  Batch batch;
  table.Pack(get->deadline.at - milliseconds(1500), batch);
  const auto& timeout = batch.request().operations(0).get().timeout();
  EXPECT_EQ(timeout.seconds(), 1);
  EXPECT_EQ(timeout.nanos(), 500'000'000);
}

TEST(OperationTableTest,
     LeavesTheLimitToTheCoordinatorWhenNobodyCanWaitSoLong) {
  OperationTable table;
  AddGet(table, "a", std::chrono::milliseconds::max());
  Batch batch;
  table.Pack(Clock::now(), batch);
  EXPECT_FALSE(batch.request().operations(0).get().has_timeout());
}

TEST(OperationTableTest, RefusesAnOperationThatNoMessageTakes) {
  OperationTable table;
  v1::Operation operation;
  operation.mutable_set()->set_value(
      std::string(OperationTable::kMessageBytesMax, 'x'));
  const Status status = table.Add(Make(std::move(operation)));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(table.unanswered(), 0);
  EXPECT_FALSE(table.HasWaiting());
}

TEST(OperationTableTest, BoundsABatchButSendsALargeOperationAlone) {
  OperationTable table;
  for (int i = 0; i < 3; ++i) {
    v1::Operation operation;
    operation.mutable_set()->set_key(
        std::string(1, static_cast<char>('a' + i)));
    operation.mutable_set()->set_value(
        std::string(OperationTable::kBatchBytesMax - 10, 'x'));
    ASSERT_TRUE(table.Add(Make(std::move(operation))).ok());
  }
  EXPECT_THAT(Send(table), ElementsAre("a"));
  EXPECT_THAT(Send(table), ElementsAre("b"));
  EXPECT_THAT(Send(table), ElementsAre("c"));
}

TEST(OperationTableTest, KeepsToTheLimitThatTheCoordinatorTells) {
  OperationTable table;
  const auto add = [&](const std::string& key, size_t bytes) {
    v1::Operation operation;
    operation.mutable_set()->set_key(key);
    operation.mutable_set()->set_value(std::string(bytes, 'x'));
    PendingOperationPtr pending = Make(std::move(operation));
    EXPECT_TRUE(table.Add(pending).ok());
    return pending;
  };
  const auto fits = add("a", 6'000);
  const auto large = add("b", 16'000);
  EXPECT_THAT(table.LimitMessages(20'000), ElementsAre(large));
  EXPECT_EQ(large->status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(large->done());
  add("c", 6'000);
  add("d", 6'000);
  EXPECT_THAT(Send(table), ElementsAre("a", "c"));
  EXPECT_THAT(Send(table), ElementsAre("d"));
  // Its number does not delay the acknowledgement.
  Answer(table, *fits);
  EXPECT_EQ(table.acknowledged_through(), 2);
}

// The coordinator keeps a barrier's arrival when a connection ends.
TEST(OperationTableTest, AnArrivalThatWasGivenUpIsCancelledUntilItIsAnswered) {
  OperationTable table;
  v1::Operation operation;
  operation.mutable_await_barrier()->set_name("b");
  const PendingOperationPtr arrival = Make(std::move(operation));
  ASSERT_TRUE(table.Add(arrival).ok());
  const uint64_t id = arrival->operation.id();
  Send(table);
  table.Requeue();
  table.Abandon(*arrival);  // while there is no connection
  EXPECT_EQ(table.unanswered(), 0);
  for (int connection = 0; connection < 2; ++connection) {
    Batch batch;
    table.Pack(Clock::now(), batch);
    ASSERT_EQ(batch.request().operations_size(), 2);
    EXPECT_EQ(batch.request().operations(0).id(), id);
    EXPECT_EQ(batch.request().operations(0).await_barrier().sequence(), 1);
    EXPECT_EQ(batch.request().operations(1).cancel().id(), id);
    EXPECT_FALSE(table.HasWaiting());
    table.Requeue();
  }
  Send(table);
  EXPECT_EQ(table.acknowledged_through(), 0);
  v1::Result result;
  result.set_id(id);
  EXPECT_EQ(table.Complete(std::move(result)), nullptr);
  EXPECT_EQ(table.acknowledged_through(), 1);
  table.Requeue();
  EXPECT_FALSE(table.HasWaiting());
}

TEST(OperationTableTest, AnArrivalThatWasNeverSentIsGoneWhenItIsGivenUp) {
  OperationTable table;
  v1::Operation operation;
  operation.mutable_await_barrier()->set_name("b");
  const PendingOperationPtr arrival = Make(std::move(operation));
  ASSERT_TRUE(table.Add(arrival).ok());
  table.Abandon(*arrival);
  EXPECT_THAT(Send(table), ElementsAre());
  EXPECT_EQ(table.acknowledged_through(), 1);
}

TEST(OperationTableTest, FailsEverything) {
  OperationTable table;
  const auto sent = AddSet(table, "a");
  Send(table);
  const auto waiting = AddGet(table, "b");
  EXPECT_EQ(table.FailAll(AbortedError("over")).size(), 2);
  EXPECT_TRUE(sent->done());
  EXPECT_EQ(waiting->status, AbortedError("over"));
  EXPECT_FALSE(table.HasWaiting());
}

}  // namespace
}  // namespace muster::internal
