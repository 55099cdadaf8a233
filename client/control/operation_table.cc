#include "client/control/operation_table.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/convert.h"

namespace muster::internal {
namespace {

using v1::Operation;

// Room in a message for other fields: a heartbeat, acknowledgements.
constexpr size_t kRoomBytes = 64 << 10;
// Room in an operation for later fields: id, number, timeout, framing.
constexpr size_t kFieldsBytes = 64;

// The longest time for which the coordinator parks a call. Without a timeout it
// uses its own limit.
constexpr std::chrono::milliseconds kParkedMax = std::chrono::hours(24);

// Tells the coordinator how long it may park the request.
template <bool kMayWait, typename Request>
void WriteTimeout(const Deadline& deadline, Instant now, Request* request) {
  if constexpr (kMayWait) {
    // A barrier's timeout counts from the first arrival and appears in every
    // rank's error, so it is sent unreduced.
    constexpr bool kWhole = std::is_same_v<Request, v1::AwaitBarrierRequest>;
    const auto left = kWhole ? deadline.timeout : deadline.Remaining(now);
    if (left < kParkedMax) {
      *request->mutable_timeout() = ToProto(left);
    } else {
      request->clear_timeout();
    }
  }
}

void WriteTimeout(const Deadline& deadline, Instant now, Operation& operation) {
  switch (operation.request_case()) {
#define MUSTER_OPERATION(service, name, field, role, mutates, may_wait, ...) \
  case Operation::k##name:                                                   \
    return WriteTimeout<may_wait>(deadline, now, operation.mutable_##field());
#include "proto/muster/v1/verbs.inc"
    default:
      return;
  }
}

bool MayPark(const Operation& operation) {
  switch (operation.request_case()) {
#define MUSTER_OPERATION(service, name, field, role, mutates, may_wait, ...) \
  case Operation::k##name:                                                   \
    return may_wait;
#include "proto/muster/v1/verbs.inc"
    default:
      return false;
  }
}

// Whether the coordinator keeps the call parked after the connection ends.
bool StaysParked(const Operation& operation) {
  return operation.has_await_barrier();
}

Operation Cancel(uint64_t id, uint64_t own_id) {
  Operation cancel;
  cancel.set_id(own_id);
  cancel.mutable_cancel()->set_id(id);
  return cancel;
}

template <bool kMutates, typename Request>
bool TakeSequence(uint64_t sequence, Request* request) {
  if constexpr (kMutates) request->set_sequence(sequence);
  return kMutates;
}

// Gives `sequence` to a mutation. Returns whether the operation is one.
bool TakeSequence(uint64_t sequence, Operation& operation) {
  switch (operation.request_case()) {
#define MUSTER_OPERATION(service, name, field, role, mutates, ...) \
  case Operation::k##name:                                         \
    return TakeSequence<mutates>(sequence, operation.mutable_##field());
#include "proto/muster/v1/verbs.inc"
    default:
      return false;
  }
}

}  // namespace

Batch::~Batch() {
  // Releases the operations, which the entries own.
  while (request_.operations_size() > 0) {
    request_.mutable_operations()->UnsafeArenaReleaseLast();
  }
}

void Batch::Lend(PendingOperationPtr pending) {
  request_.mutable_operations()->UnsafeArenaAddAllocated(&pending->operation);
  lent_.push_back(std::move(pending));
}

void Batch::Take(Operation operation) {
  owned_.push_back(std::move(operation));
  request_.mutable_operations()->UnsafeArenaAddAllocated(&owned_.back());
}

size_t OperationTable::OperationBytesMax() const {
  return message_bytes_max_ - std::min(message_bytes_max_ / 4, kRoomBytes);
}

Status OperationTable::CheckBytes(const PendingOperation& pending) const {
  if (pending.bytes <= OperationBytesMax()) return OkStatus();
  return ResourceExhaustedError(absl::StrCat(
      "limit message_bytes is ", message_bytes_max_, ", which leaves ",
      OperationBytesMax(), " for one operation, offered ", pending.bytes,
      "; divide the value among several keys, or use a muster-coordinator with "
      "a higher --limit_message_bytes"));
}

std::vector<PendingOperationPtr> OperationTable::LimitMessages(size_t bytes) {
  message_bytes_max_ = bytes;
  std::vector<PendingOperationPtr> failed;
  for (const auto& [id, pending] : unanswered_) {
    Status status = CheckBytes(*pending);
    if (status.ok()) continue;
    pending->status = std::move(status);
    failed.push_back(pending);
  }
  for (const PendingOperationPtr& pending : failed) {
    unanswered_.erase(pending->operation.id());
    MarkSettled(*pending);
    pending->SetDone();
  }
  return failed;
}

Status OperationTable::Add(const PendingOperationPtr& pending) {
  Status status = CheckBytes(*pending);
  if (!status.ok()) return status;
  pending->batch_event = batch_event_;
  pending->operation.set_id(++last_id_);
  if (TakeSequence(last_sequence_ + 1, pending->operation)) {
    pending->sequence = ++last_sequence_;
    settled_.push_back(false);
    MoveWindow();
  }
  unanswered_.emplace(last_id_, pending);
  waiting_.push_back(pending);
  return OkStatus();
}

void OperationTable::Pack(Instant now, Batch& batch) {
  size_t bytes = 0;
  for (const uint64_t id : cancels_) batch.Take(Cancel(id, ++last_id_));
  cancels_.clear();
  const size_t bytes_max = std::min(kBatchBytesMax, OperationBytesMax());
  while (!waiting_.empty() && bytes < bytes_max) {
    PendingOperationPtr next = waiting_.front();
    if (next->state == PendingOperation::State::kWaiting) {
      const size_t next_bytes = next->bytes + kFieldsBytes;
      if (bytes > 0 && bytes + next_bytes > bytes_max) break;
      bytes += next_bytes;
      WriteTimeout(next->deadline, now, next->operation);
      next->state = PendingOperation::State::kSent;
      next->was_sent = true;
      const bool withdrawn = next->withdrawn;
      const uint64_t id = next->operation.id();
      batch.Lend(std::move(next));
      if (withdrawn) batch.Take(Cancel(id, ++last_id_));
    }
    waiting_.pop_front();
  }
  // Callers of the next message use another event. Callers that did not fit
  // into this message wake with it, without need.
  batch_event_ = std::make_shared<BatchEvent>();
  batch.request().set_acknowledged_through(settled_through_);
  for (const uint64_t number : stragglers_) {
    batch.request().add_unanswered(number);
  }
}

PendingOperationPtr OperationTable::Complete(v1::Result result) {
  const auto found = unanswered_.find(result.id());
  if (found == unanswered_.end()) {
    const auto withdrawn = withdrawn_.find(result.id());
    if (withdrawn != withdrawn_.end()) {
      MarkSettled(*withdrawn->second);
      withdrawn_.erase(withdrawn);
    }
    return nullptr;
  }
  PendingOperationPtr pending = std::move(found->second);
  unanswered_.erase(found);
  pending->result = std::move(result);
  MarkSettled(*pending);
  return pending;
}

void OperationTable::Abandon(PendingOperation& pending) {
  const uint64_t id = pending.operation.id();
  const auto entry = unanswered_.find(id);
  if (pending.state == PendingOperation::State::kSent &&
      MayPark(pending.operation)) {
    cancels_.push_back(id);
  }
  if (pending.was_sent && StaysParked(pending.operation)) {
    pending.withdrawn = true;
    withdrawn_.emplace(id, entry->second);
  } else {
    pending.state = PendingOperation::State::kAbandoned;
    MarkSettled(pending);
  }
  unanswered_.erase(entry);
}

void OperationTable::Requeue() {
  std::vector<PendingOperationPtr> all;
  all.reserve(unanswered_.size() + withdrawn_.size());
  for (const auto& [id, pending] : unanswered_) all.push_back(pending);
  for (const auto& [id, pending] : withdrawn_) all.push_back(pending);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a->operation.id() < b->operation.id();
  });
  waiting_.assign(all.begin(), all.end());
  for (const auto& pending : waiting_) {
    pending->state = PendingOperation::State::kWaiting;
  }
  // Other parked operations ended with the old stream.
  cancels_.clear();
}

std::vector<PendingOperationPtr> OperationTable::FailAll(const Status& status) {
  std::vector<PendingOperationPtr> all;
  all.reserve(unanswered_.size());
  for (auto& [id, pending] : unanswered_) {
    pending->status = status;
    pending->SetDone();
    all.push_back(pending);
  }
  unanswered_.clear();
  withdrawn_.clear();
  waiting_.clear();
  cancels_.clear();
  return all;
}

void OperationTable::MarkSettled(const PendingOperation& pending) {
  if (pending.sequence <= settled_through_) {
    stragglers_.erase(pending.sequence);
    return;
  }
  settled_[pending.sequence - settled_through_ - 1] = true;
  MoveWindow();
}

void OperationTable::MoveWindow() {
  while (!settled_.empty() &&
         (settled_.front() || settled_.size() > kWindowMax)) {
    ++settled_through_;
    if (!settled_.front()) stragglers_.insert(settled_through_);
    settled_.pop_front();
  }
}

}  // namespace muster::internal
