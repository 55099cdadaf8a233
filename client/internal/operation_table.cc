#include "client/internal/operation_table.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/internal/convert.h"

namespace muster::internal {
namespace {

using v1::Operation;

// The coordinator parks nothing for longer than this; without a timeout it
// takes its own limit.
constexpr std::chrono::milliseconds kParkedMax = std::chrono::hours(24);

template <typename Request>
void Limit(Request* request, std::chrono::milliseconds left) {
  if (left < kParkedMax) {
    *request->mutable_timeout() = ToProto(left);
  } else {
    request->clear_timeout();
  }
}

void WriteTimeout(const Deadline& deadline, Instant now, Operation& operation) {
  const auto left = deadline.Remaining(now);
  switch (operation.request_case()) {
    case Operation::kGet:
      return Limit(operation.mutable_get(), left);
    case Operation::kWait:
      return Limit(operation.mutable_wait(), left);
    case Operation::kMultiGet:
      return Limit(operation.mutable_multi_get(), left);
    case Operation::kQueuePop:
      return Limit(operation.mutable_queue_pop(), left);
    case Operation::kWatch:
      return Limit(operation.mutable_watch(), left);
    case Operation::kJoin:
      return Limit(operation.mutable_join(), left);
    case Operation::kAwaitBarrier:
      // Counted from the first arrival, and named in everybody's error: the
      // whole of it.
      return Limit(operation.mutable_await_barrier(), deadline.timeout);
    default:
      return;
  }
}

bool MayPark(const Operation& operation) {
  switch (operation.request_case()) {
    case Operation::kGet:
    case Operation::kWait:
    case Operation::kMultiGet:
    case Operation::kQueuePop:
    case Operation::kWatch:
    case Operation::kJoin:
    case Operation::kAwaitBarrier:
      return true;
    default:
      return false;
  }
}

// Whether the operation is a mutation, which takes the number.
bool TakeSequence(uint64_t sequence, Operation& operation) {
  switch (operation.request_case()) {
    case Operation::kSet:
      operation.mutable_set()->set_sequence(sequence);
      return true;
    case Operation::kAdd:
      operation.mutable_add()->set_sequence(sequence);
      return true;
    case Operation::kAppend:
      operation.mutable_append()->set_sequence(sequence);
      return true;
    case Operation::kCompareSet:
      operation.mutable_compare_set()->set_sequence(sequence);
      return true;
    case Operation::kDelete:
      operation.mutable_delete_()->set_sequence(sequence);
      return true;
    case Operation::kMultiSet:
      operation.mutable_multi_set()->set_sequence(sequence);
      return true;
    case Operation::kCompareAndSet:
      operation.mutable_compare_and_set()->set_sequence(sequence);
      return true;
    case Operation::kDeletePrefix:
      operation.mutable_delete_prefix()->set_sequence(sequence);
      return true;
    case Operation::kQueuePush:
      operation.mutable_queue_push()->set_sequence(sequence);
      return true;
    case Operation::kQueuePop:
      operation.mutable_queue_pop()->set_sequence(sequence);
      return true;
    case Operation::kJoin:
      operation.mutable_join()->set_sequence(sequence);
      return true;
    case Operation::kAwaitBarrier:
      operation.mutable_await_barrier()->set_sequence(sequence);
      return true;
    case Operation::kCloseRendezvous:
      operation.mutable_close_rendezvous()->set_sequence(sequence);
      return true;
    case Operation::kRegisterGroups:
      operation.mutable_register_groups()->set_sequence(sequence);
      return true;
    default:
      return false;
  }
}

}  // namespace

Batch::~Batch() {
  // Lent, not given: the entries own them.
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

absl::Status OperationTable::Add(const PendingOperationPtr& pending) {
  if (pending->bytes > kOperationBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the request is ", pending->bytes,
                     " bytes, a message takes ", kOperationBytesMax));
  }
  pending->wave = wave_;
  pending->operation.set_id(++last_id_);
  if (TakeSequence(last_sequence_ + 1, pending->operation)) {
    pending->sequence = ++last_sequence_;
    settled_.push_back(false);
    MoveWindow();
  }
  unanswered_.emplace(last_id_, pending);
  waiting_.push_back(pending);
  return absl::OkStatus();
}

void OperationTable::Pack(Instant now, Batch& batch) {
  size_t bytes = 0;
  for (const uint64_t id : cancels_) {
    Operation cancel;
    cancel.set_id(++last_id_);
    cancel.mutable_cancel()->set_id(id);
    batch.Take(std::move(cancel));
  }
  cancels_.clear();
  while (!waiting_.empty() && bytes < kBatchBytesMax) {
    PendingOperationPtr next = waiting_.front();
    if (next->state == PendingOperation::State::kWaiting) {
      if (bytes > 0 && bytes + next->bytes > kBatchBytesMax) break;
      bytes += next->bytes;
      WriteTimeout(next->deadline, now, next->operation);
      next->state = PendingOperation::State::kSent;
      batch.Lend(std::move(next));
    }
    waiting_.pop_front();
  }
  // Callers of the next message sleep elsewhere. What did not fit into this one
  // is woken with it, for nothing.
  wave_ = std::make_shared<Wave>();
  batch.request().set_acknowledged_through(settled_through_);
  for (const uint64_t number : stragglers_) {
    batch.request().add_unanswered(number);
  }
}

PendingOperationPtr OperationTable::Complete(v1::Result result) {
  const auto found = unanswered_.find(result.id());
  if (found == unanswered_.end()) return nullptr;
  PendingOperationPtr pending = std::move(found->second);
  unanswered_.erase(found);
  pending->result = std::move(result);
  Settle(*pending);
  return pending;
}

void OperationTable::Abandon(PendingOperation& pending) {
  if (pending.state == PendingOperation::State::kSent &&
      MayPark(pending.operation)) {
    cancels_.push_back(pending.operation.id());
  }
  pending.state = PendingOperation::State::kAbandoned;
  Settle(pending);
  unanswered_.erase(pending.operation.id());
}

void OperationTable::Requeue() {
  std::vector<PendingOperationPtr> all;
  all.reserve(unanswered_.size());
  for (const auto& [id, pending] : unanswered_) all.push_back(pending);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a->operation.id() < b->operation.id();
  });
  waiting_.assign(all.begin(), all.end());
  for (const auto& pending : waiting_) {
    pending->state = PendingOperation::State::kWaiting;
  }
  // What was parked on the old stream went with it.
  cancels_.clear();
}

std::vector<PendingOperationPtr> OperationTable::FailAll(
    const absl::Status& status) {
  std::vector<PendingOperationPtr> all;
  all.reserve(unanswered_.size());
  for (auto& [id, pending] : unanswered_) {
    pending->status = status;
    pending->SetDone();
    all.push_back(pending);
  }
  unanswered_.clear();
  waiting_.clear();
  cancels_.clear();
  return all;
}

void OperationTable::Settle(const PendingOperation& pending) {
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
