// Keeps the answers that a member may still request again.

#ifndef MUSTER_COORDINATOR_CORE_REPLY_CACHE_H_
#define MUSTER_COORDINATOR_CORE_REPLY_CACHE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/total_memory.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// Checks that a member can have received the answers to all its numbers up to
// `through`.
// Errors: INVALID_ARGUMENT (beyond 2^63 - 1: no member counts that far, and a
//   number must remain after it).
Status CheckAcknowledged(SequenceNumber through);

// The answer to a numbered mutation of a live member, as it survives a restart
// (records.h).
struct ReplyRecord {
  MemberId member;          // name
  SequenceNumber sequence;  // name
  bool erased = false;
  // The numbers that the member had acknowledged by then, except `open`.
  SequenceNumber acknowledged_through;
  std::vector<SequenceNumber> open;
  std::string method;
  Status status;
  Payload payload;
};

// ReplyCache remembers the numbered mutations of one incarnation, so that each
// is applied once however often it is retried. It holds the numbers that the
// member has not acknowledged: the window of the newest ones, and below it the
// few that the member has listed as unanswered. Its contents count towards the
// job's memory.
class ReplyCache {
 public:
  // `memory` is Limits::memory.
  explicit ReplyCache(MemoryShare* memory = nullptr) : held_(memory) {}

  enum class State : uint8_t {
    kNew,     // never seen: apply it
    kParked,  // applied, not answered yet; `waiter` awaits the answer
    kDone,    // applied and answered; `reply` is the answer
  };

  struct Entry {
    State state = State::kNew;
    std::string method;  // the method that used the number
    WaiterId waiter;     // kParked; none: its connection is closed
    Reply reply;         // kDone
  };

  // Forgets all numbers up to `through` except `unanswered`, which is in
  // ascending order. Forgotten numbers stay forgotten. Calls `forgotten` for
  // each answer that is dropped.
  // Errors (nothing changes): INVALID_ARGUMENT (CheckAcknowledged),
  //   RESOURCE_EXHAUSTED (retained_replies: too many are unanswered;
  //   total_bytes).
  Status Acknowledge(
      SequenceNumber through, absl::Span<const SequenceNumber> unanswered,
      const Limits& limits,
      absl::FunctionRef<void(SequenceNumber)> forgotten = [](auto) {});

  // Returns the entry of `sequence`, the number of a call of `method`. It stays
  // valid until the next call.
  // Errors: FAILED_PRECONDITION (acknowledged before: a late duplicate, which
  //   must not be applied again), INVALID_ARGUMENT (another method used the
  //   number), RESOURCE_EXHAUSTED (retained_replies, retained_reply_bytes,
  //   total_bytes: acknowledge the answers). A few entries are never refused
  //   for total_bytes, so that a member can make room.
  StatusOr<Entry*> Find(SequenceNumber sequence, absl::string_view method,
                        const Limits& limits);

  // The entry of a number that Find has returned; null if the number was
  // acknowledged or forgotten since.
  const Entry* Lookup(SequenceNumber sequence) const;
  Entry* Lookup(SequenceNumber sequence);

  // Records the outcome of `sequence`, which Find has returned.
  void SetParked(SequenceNumber sequence, WaiterId waiter);
  void SetDone(SequenceNumber sequence, const Reply& reply);

  // The call was withdrawn. A retry is a new call.
  void Forget(SequenceNumber sequence);

  // The numbers whose answers are kept, ascending.
  std::vector<SequenceNumber> Answered() const;

  // Fills in all fields but the names.
  void Record(ReplyRecord& record) const;
  // Restores a new cache from all records of one member.
  void Restore(std::vector<ReplyRecord> records);

  int64_t size() const;  // entries that are not new
  int64_t bytes() const { return bytes_; }

  // Recomputes the memory that the cache holds.
  int64_t CountMemory() const;

 private:
  void Account();
  static StatusOr<Entry*> Claim(Entry& entry, SequenceNumber sequence,
                                absl::string_view method);

  std::map<uint64_t, Entry> stragglers_;  // numbers below first_
  std::deque<Entry> window_;              // numbers first_ to first_ + size - 1
  uint64_t first_ = 1;
  int64_t bytes_ = 0;  // of the answers
  MemoryHeld held_;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_REPLY_CACHE_H_
