// The operations of one session that have no answer yet, in the order in which
// they were issued. Knows which to send, which to send again after a
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
#include "client/control/batch_event.h"
#include "client/control/deadline.h"
#include "muster/base/status.h"
#include "muster/v1/session.pb.h"

namespace muster::internal {

// One operation under way, shared by the caller that waits for it and the
// thread that writes or completes it. The session's lock guards the fields
// unless their comments say otherwise.
struct PendingOperation {
  enum class State { kWaiting, kSent, kDone, kAbandoned };

  PendingOperation(v1::Operation request, const Deadline& until)
      : operation(std::move(request)),
        bytes(operation.ByteSizeLong()),
        deadline{until.at, until.timeout, ""} {}

  // If true, the outcome is final and the caller may read it. Needs no lock.
  bool done() const { return done_.load(std::memory_order_acquire); }
  void SetDone() {
    state = State::kDone;
    done_.store(true, std::memory_order_release);
  }

  // Only Pack changes it; the writing thread reads it without the lock.
  v1::Operation operation;
  // The approximate size on the wire. Constant.
  const size_t bytes;
  const Deadline deadline;

  State state = State::kWaiting;
  // Sent at least once; the coordinator may have it.
  bool was_sent = false;
  // The caller has given up: a cancel follows whenever this is sent.
  bool withdrawn = false;
  // Tells the caller to stop waiting. Needs no lock.
  std::atomic<bool> cancelled{false};

  // Constant after Add.
  uint64_t sequence = 0;  // 0: not a mutation
  // The event on which the callers of one message sleep.
  std::shared_ptr<BatchEvent> batch_event;
  // The outcome; valid once done().
  Status status;
  v1::Result result;

 private:
  std::atomic<bool> done_{false};
};

using PendingOperationPtr = std::shared_ptr<PendingOperation>;

// A message to be sent. It borrows its operations from the table's entries,
// without a copy.
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
  // A batch of this size takes no further operation.
  static constexpr size_t kBatchBytesMax = size_t{4} << 20;
  // The limit of a message until the coordinator tells its own.
  static constexpr size_t kMessageBytesMax = size_t{64} << 20;

  // How many mutations may follow an unanswered one before messages list that
  // one as a straggler. Well below the number of answers that the coordinator
  // keeps for a member (retained_replies, 4096), and well above the number of
  // operations under way, so few messages list stragglers.
  static constexpr size_t kWindowMax = 1024;

  // Sets the coordinator's limit of a message. Fails the unanswered operations
  // that are larger, and returns them: their callers must be woken.
  std::vector<PendingOperationPtr> LimitMessages(size_t bytes);

  // Numbers the operation and queues it. A mutation gets the next sequence
  // number, so the order of the numbers is the order of sending.
  // Errors: kResourceExhausted (too large for a message).
  Status Add(const PendingOperationPtr& pending);

  // Moves the waiting operations into `batch`, and sets the timeout inside each
  // to the rest that is left at `now`.
  void Pack(Instant now, Batch& batch);

  // Whether there is anything to Pack.
  bool HasWaiting() const { return !waiting_.empty() || !cancels_.empty(); }

  // Takes the answer to an operation. Does not mark the operation as done.
  // Returns null if its caller has given up.
  PendingOperationPtr Complete(v1::Result result);

  // The caller gives up. Cancels a sent operation that may be parked on the
  // coordinator. An arrival at a barrier stays parked when the connection ends;
  // so it is kept, and cancelled again on the next connection.
  void Abandon(PendingOperation& pending);

  // After the end of a connection: queues all unanswered operations again, in
  // order.
  void Requeue();

  // Fails all operations with `status`, and returns them: their callers must be
  // woken.
  std::vector<PendingOperationPtr> FailAll(const Status& status);

  // Every mutation up to this number is answered or given up, except the
  // stragglers.
  uint64_t acknowledged_through() const { return settled_through_; }

  // The mutations, ascending, that are still unanswered after kWindowMax later
  // ones, such as parked barriers.
  const std::set<uint64_t>& stragglers() const { return stragglers_; }

  size_t unanswered() const { return unanswered_.size(); }

  // How many of these were sent. Approximate if callers have given up.
  size_t under_way() const {
    return unanswered_.size() - std::min(unanswered_.size(), waiting_.size());
  }

 private:
  // The largest operation; leaves room for the rest of the message.
  size_t OperationBytesMax() const;
  Status CheckBytes(const PendingOperation& pending) const;
  void MarkSettled(const PendingOperation& pending);
  void MoveWindow();

  size_t message_bytes_max_ = kMessageBytesMax;
  // The event of the waiting operations.
  std::shared_ptr<BatchEvent> batch_event_ = std::make_shared<BatchEvent>();
  uint64_t last_id_ = 0;
  uint64_t last_sequence_ = 0;
  uint64_t settled_through_ = 0;
  // Element i says whether mutation settled_through_ + 1 + i is settled.
  std::deque<bool> settled_;
  std::set<uint64_t> stragglers_;
  absl::flat_hash_map<uint64_t, PendingOperationPtr> unanswered_;
  // Given up, perhaps still parked on the coordinator.
  absl::flat_hash_map<uint64_t, PendingOperationPtr> withdrawn_;
  // In order. May contain abandoned operations.
  std::deque<PendingOperationPtr> waiting_;
  std::vector<uint64_t> cancels_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_OPERATION_TABLE_H_
