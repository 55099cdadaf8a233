// The operations of one session that have no answer yet, in the order in which
// they were issued: what is to be sent, what is to be sent again after a
// reconnection, and which mutations the coordinator may forget.

#ifndef MUSTER_CLIENT_CONTROL_OPERATION_TABLE_H_
#define MUSTER_CLIENT_CONTROL_OPERATION_TABLE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "client/control/batch_event.h"
#include "client/control/deadline.h"
#include "muster/v1/session.pb.h"

namespace muster::internal {

// One operation on its way, shared between its caller, who waits for it, and
// whoever writes or completes it. Fields are guarded by the session's lock
// unless marked otherwise.
struct PendingOperation {
  enum class State { kWaiting, kSent, kDone, kAbandoned };

  PendingOperation(v1::Operation request, const Deadline& until)
      : operation(std::move(request)),
        bytes(operation.ByteSizeLong()),
        deadline{until.at, until.timeout, ""} {}

  // The outcome is there, and nobody else changes it any more: its caller may
  // read it. Needs no lock.
  bool done() const { return done_.load(std::memory_order_acquire); }
  void SetDone() {
    state = State::kDone;
    done_.store(true, std::memory_order_release);
  }

  // Read without the lock by whoever writes it: changed by Pack alone.
  v1::Operation operation;
  // Constant: about the operation's size on the wire.
  const size_t bytes;
  const Deadline deadline;

  State state = State::kWaiting;
  // It was sent at least once, and may have arrived.
  bool was_sent = false;
  // Its caller gave up: each time it is sent, a cancel follows it.
  bool withdrawn = false;
  // Its caller is to stop waiting for it. Needs no lock.
  std::atomic<bool> cancelled{false};

  // Constant after the operation was added.
  uint64_t sequence = 0;  // 0: not a mutation
  // Where its caller sleeps, and those of the other operations of its message.
  std::shared_ptr<BatchEvent> batch_event;
  // The outcome, once done.
  Status status;
  v1::Result result;

 private:
  std::atomic<bool> done_{false};
};

using PendingOperationPtr = std::shared_ptr<PendingOperation>;

// A message on its way out. It borrows its operations from the table's
// entries: nothing is copied.
class Batch {
 public:
  Batch() = default;
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  v1::StreamRequest& request() { return request_; }
  void Lend(PendingOperationPtr pending);
  void Take(v1::Operation operation);

 private:
  v1::StreamRequest request_;
  std::vector<PendingOperationPtr> lent_;
  std::deque<v1::Operation> owned_;
};

// Not thread-safe: the session's lock guards it.
class OperationTable {
 public:
  // Past this a batch takes no further operation.
  static constexpr size_t kBatchBytesMax = size_t{4} << 20;
  // What one message may weigh when the coordinator has not told yet.
  static constexpr size_t kMessageBytesMax = size_t{64} << 20;

  // How many mutations may follow an unanswered one before the coordinator is
  // told of it by its number. Well below the answers that it keeps for one
  // member (retained_replies, 4096), and well above what is under way at one
  // time, so that few messages carry such numbers.
  static constexpr size_t kWindowMax = 1024;

  // The coordinator takes no message above `bytes`. What waits and is too large
  // for that is failed; returns whose callers must be woken.
  std::vector<PendingOperationPtr> LimitMessages(size_t bytes);

  // Numbers the operation and queues it. A mutation gets the next sequence
  // number, so the order of the numbers is the order of sending.
  // Errors: kResourceExhausted (too large for a message).
  Status Add(const PendingOperationPtr& pending);

  // Moves what waits into `batch`. Timeouts inside operations become what is
  // left of them at `now`.
  void Pack(Instant now, Batch& batch);

  // Whether Pack would find anything.
  bool HasWaiting() const { return !waiting_.empty() || !cancels_.empty(); }

  // Takes the answer to an operation, which is not marked as done yet; null
  // when nobody waits for it any more.
  PendingOperationPtr Complete(v1::Result result);

  // The caller gives up. An operation that was sent is cancelled on the other
  // side if it may be parked there: a barrier's arrival stays there over the
  // end of the connection, so it is kept and cancelled on the next one.
  void Abandon(PendingOperation& pending);

  // The connection broke: all that has no answer waits again, in order.
  void Requeue();

  // Ends everything with `status`; returns whose callers must be woken.
  std::vector<PendingOperationPtr> FailAll(const Status& status);

  // Every mutation up to this number is answered or given up, except the
  // stragglers.
  uint64_t acknowledged_through() const { return settled_through_; }

  // In ascending order: mutations that have been without an answer for longer
  // than kWindowMax others, such as parked barriers.
  const std::set<uint64_t>& stragglers() const { return stragglers_; }

  size_t unanswered() const { return unanswered_.size(); }

  // Of these, how many were sent; more or less, when some were given up.
  size_t under_way() const {
    return unanswered_.size() - std::min(unanswered_.size(), waiting_.size());
  }

 private:
  // What one operation may weigh: there must be room for the rest of a message.
  size_t OperationBytesMax() const;
  Status CheckBytes(const PendingOperation& pending) const;
  void Settle(const PendingOperation& pending);
  void MoveWindow();

  size_t message_bytes_max_ = kMessageBytesMax;
  // Of the operations that wait.
  std::shared_ptr<BatchEvent> batch_event_ = std::make_shared<BatchEvent>();
  uint64_t last_id_ = 0;
  uint64_t last_sequence_ = 0;
  uint64_t settled_through_ = 0;
  // Whether the mutation settled_through_ + 1 + i is settled.
  std::deque<bool> settled_;
  std::set<uint64_t> stragglers_;
  absl::flat_hash_map<uint64_t, PendingOperationPtr> unanswered_;
  // Given up, and perhaps still parked on the other side.
  absl::flat_hash_map<uint64_t, PendingOperationPtr> withdrawn_;
  // In order. May hold abandoned ones.
  std::deque<PendingOperationPtr> waiting_;
  std::vector<uint64_t> cancels_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_OPERATION_TABLE_H_
