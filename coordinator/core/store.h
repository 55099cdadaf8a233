// The key-value store of one job.

#ifndef MUSTER_COORDINATOR_CORE_STORE_H_
#define MUSTER_COORDINATOR_CORE_STORE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/core/store_data.h"
#include "coordinator/core/store_waiters.h"
#include "coordinator/core/watch_history.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// The properties of a written key besides its value.
struct SetOptions {
  // The key is deleted after this time. INVALID_ARGUMENT unless positive.
  std::optional<Duration> ttl{};

  // The key is deleted when the calling member departs: is lost, fails, leaves
  // or is replaced. INVALID_ARGUMENT (the caller is no member).
  bool ephemeral = false;
};

struct WatchRequest {
  WatchSelector selector;
  // The revision that the caller knows. None: begin now.
  std::optional<int64_t> after{};
  Duration timeout{};
};

// StoreEngine maps keys to values and to queues of items, all byte strings.
// Each change of a key and each item pushed or popped gets the store's next
// revision; the keys of one MultiSet share one. Only `member` and `waiter` of a
// Call are used here: fencing and deduplication have already happened.
//
// A waiting call is answered in the step, of any verb, that makes its last key
// appear, or fails at its deadline.
//
// A key holds a value or a queue. A queue that becomes empty ceases to exist,
// and the key is free. Check and Wait count a queue as present, as they do a
// value. A verb for the other kind fails with INVALID_ARGUMENT (`set: key "k"
// is a queue of 2 items, no value`).
//
// Set, MultiSet and CompareAndSet replace a key with all its properties; the
// other verbs that write leave its time to live and its owner unchanged.
//
// Every verb may fail with RESOURCE_EXHAUSTED (a limit of limits.h); it then
// changes nothing.
class StoreEngine {
 public:
  // The arguments must outlive the engine.
  StoreEngine(const Limits* limits, WaiterQuota* quota, Journal* journal);
  StoreEngine(const StoreEngine&) = delete;
  StoreEngine& operator=(const StoreEngine&) = delete;

  // RevisionReply.
  void Set(const Call& call, absl::string_view key, std::string value,
           const SetOptions& options, Instant now, Outbox& out);

  // ValueReply. Waits for the key. Fails if a queue appears.
  // Errors: DEADLINE_EXCEEDED (`wait timeout after 100ms, keys: a`).
  void Get(const Call& call, absl::string_view key, Duration timeout,
           Instant now, Outbox& out);

  // ValueReply, with a null value when there is no such key.
  void TryGet(const Call& call, absl::string_view key, Outbox& out) const;

  // NumberReply: the sum, which the key then holds as decimal text. An absent
  // key counts as 0 and is created, also by a `delta` of 0.
  // INVALID_ARGUMENT (the key holds something else than a decimal int64),
  // OUT_OF_RANGE (the sum does not fit).
  void Add(const Call& call, absl::string_view key, int64_t delta, Outbox& out);

  // RevisionReply. Creates the key when it is absent.
  void Append(const Call& call, absl::string_view key, absl::string_view bytes,
              Outbox& out);

  // CompareSetReply, by c10d's rules: absent and `expected` empty, or present
  // and equal to `expected`: stores and returns `desired`. Absent and
  // `expected` not empty: returns `expected`, stores nothing. Present and
  // different: returns the present value.
  void CompareSet(const Call& call, absl::string_view key,
                  absl::string_view expected, std::string desired, Outbox& out);

  // CompareSetReply. Stores `value` when the key's revision is
  // `expected_revision`; 0: when the key is absent. The reply's value is the
  // present one when nothing was stored, else null.
  // INVALID_ARGUMENT (a negative revision).
  void CompareAndSet(const Call& call, absl::string_view key,
                     int64_t expected_revision, std::string value,
                     const SetOptions& options, Instant now, Outbox& out);

  // FlagReply: whether there was such a key. A queue goes with its items.
  void DeleteKey(const Call& call, absl::string_view key, Outbox& out);

  // NumberReply: the number of deleted keys, queues included. Deletes all keys
  // that begin with `prefix`, in one step.
  void DeletePrefix(const Call& call, absl::string_view prefix, Outbox& out);

  // RevisionReply. Wakes at most one pop: the one that has waited longest and
  // whose caller has not gone.
  void QueuePush(const Call& call, absl::string_view key, std::string item,
                 Outbox& out);

  // ValueReply: the oldest item of the queue. Waits for one if there is a
  // `timeout`.
  // NOT_FOUND (`queue is empty, key: "q"`, without a timeout),
  // DEADLINE_EXCEEDED.
  void QueuePop(const Call& call, absl::string_view key,
                std::optional<Duration> timeout, Instant now, Outbox& out);

  // NumberReply: 0 when there is no such queue.
  void QueueLen(const Call& call, absl::string_view key, Outbox& out) const;

  // WatchReply: the changes of selected values (not of queues) after the
  // request's revision. Waits for the first change. Answers without one at the
  // deadline, or at once if the request has no revision. A watch from the
  // reply's revision misses nothing and repeats nothing, also after a restart
  // of a durable coordinator: while a watch waits, and for five minutes after
  // the last one, the changes in the history have records.
  // Errors: OUT_OF_RANGE (the history does not reach back that far: read the
  //   keys anew; or the revision is ahead of the store's).
  void Watch(const Call& call, WatchRequest request, Instant now, Outbox& out);

  // FlagReply: whether all keys are there.
  void Check(const Call& call, absl::Span<const std::string> keys,
             Outbox& out) const;

  // No payload. Waits until all keys are there at the same time.
  // DEADLINE_EXCEEDED (names the missing keys only).
  void Wait(const Call& call, std::vector<std::string> keys, Duration timeout,
            Instant now, Outbox& out);

  // ValuesReply. Waits as Wait does.
  void MultiGet(const Call& call, std::vector<std::string> keys,
                Duration timeout, Instant now, Outbox& out);

  // RevisionReply. All or nothing, in one revision. If a key appears twice, its
  // last value counts.
  // Errors: INVALID_ARGUMENT (as many keys as values are needed).
  void MultiSet(const Call& call, absl::Span<const std::string> keys,
                std::vector<std::string> values, Outbox& out);

  // NumberReply. Queues do not count.
  void NumKeys(const Call& call, Outbox& out) const;

  // KeysReply: at most `count_max` keys that begin with `prefix` and are
  // greater than `after`. Without queues.
  void ListKeys(const Call& call, absl::string_view prefix,
                absl::string_view after, int64_t count_max, Outbox& out) const;

  // Removes the keys, and fails the waiters, that are due at `now`.
  void Expire(Instant now, Outbox& out);

  // Fails the waiter with `status`. Returns false if it does not wait here.
  bool Cancel(WaiterId waiter, const Status& status, Outbox& out);

  // Answers the call of `from` to `to`. Returns false if `from` does not wait
  // here.
  bool Retarget(WaiterId from, WaiterId to) {
    return waiters_.Retarget(from, to);
  }

  // The member has departed: fails all its waiters, removes its ephemeral keys.
  void MemberDeparted(const MemberId& member, const Status& status,
                      Outbox& out);

  std::optional<Instant> NextDeadline() const;

  EntryRecord MakeRecord(absl::string_view key) const {
    return data_.MakeRecord(key);
  }
  ItemRecord MakeRecord(absl::string_view key, int64_t number) const {
    return data_.MakeRecord(key, number);
  }
  ChangeRecord MakeChangeRecord(int64_t revision, absl::string_view key) const {
    return data_.MakeChangeRecord(revision, key);
  }
  StoreRecord MakeStoreRecord() const { return data_.MakeStoreRecord(); }

  // Restore a new engine: the entries before the changes, these in their order,
  // and the StoreRecord last.
  void Restore(EntryRecord record, Instant now) {
    data_.Restore(std::move(record), now);
  }
  void Restore(ItemRecord record) { data_.Restore(std::move(record)); }
  void Restore(ChangeRecord record) { data_.Restore(std::move(record)); }
  void Restore(const StoreRecord& record, Instant now);

  // The calls of members that wait for keys or items, oldest first. Sets `more`
  // to the number of calls left out.
  std::vector<KeyWaitSnapshot> KeyWaits(Instant now, int64_t& more) const;

  int64_t revision() const { return data_.revision(); }
  int64_t keys() const { return static_cast<int64_t>(data_.entries().size()); }
  int64_t bytes() const { return data_.bytes(); }
  int64_t CountMemory() const { return data_.CountMemory(); }
  int64_t queue_items() const { return data_.items(); }
  int64_t waiters() const { return waiters_.size(); }
  int64_t pops() const { return waiters_.pops(); }

  Status CheckInvariants() const;

 private:
  Status CheckKey(absl::string_view key) const;
  Status CheckKeys(absl::Span<const std::string> keys) const;
  StatusOr<Lifetime> ComputeLifetime(const Call& call, absl::string_view verb,
                                     const SetOptions& options,
                                     Instant now) const;
  void Write(absl::string_view key, Value value,
             std::optional<Lifetime> lifetime, Outbox& out);
  void Remove(absl::string_view key, ChangeKind why);
  void RemoveQueue(absl::string_view key);
  void Appeared(absl::string_view key, Outbox& out);
  void AnswerWatches(Outbox& out);
  void StoreHistory(int64_t after, Instant now);
  void ExpireHistory(Instant now);
  void Park(const Call& call, StoreWaiter::Awaited awaited,
            std::vector<std::string> keys, Duration timeout, Instant now,
            Outbox& out);
  void Park(const Call& call, StoreWaiter waiter, Duration timeout, Instant now,
            Outbox& out);
  StatusOr<Payload> Collect(StoreWaiter::Awaited awaited,
                            absl::Span<const std::string> keys) const;
  std::string TimeoutText(const StoreWaiter& waiter) const;

  const Limits& limits_;
  StoreData data_;
  StoreWaiters waiters_;

  // Watches that match a change of the current step.
  StoreWaiters::ByOrder woken_watches_;
  // The revision after the last step. Parked watches have seen all up to it.
  int64_t seen_ = 0;

  // When to look whether watches still use the stored history, and whether one
  // has at the last look or since. None: the history is not stored.
  std::optional<Instant> history_due_;
  bool history_used_ = false;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_STORE_H_
