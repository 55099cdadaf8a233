// The key-value store of one job.

#ifndef MUSTER_COORDINATOR_CORE_STORE_ENGINE_H_
#define MUSTER_COORDINATOR_CORE_STORE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"

namespace muster::coordinator::core {

// What of the store survives a restart (records.h): each key, and the
// revision.
struct EntryRecord {
  std::string key;  // name
  Value value;      // null: erased
  int64_t revision = 0;
};
struct StoreRecord {
  int64_t revision = 0;
};

// StoreEngine maps keys to values, both byte strings. Every mutation advances
// the store's revision by one. A call that waits is answered in the step that
// makes its last key appear, whatever verb that step is, or fails at its
// deadline. Of the Call only `member` and `waiter` matter here: fencing and
// deduplication come before.
//
// Every verb may fail with RESOURCE_EXHAUSTED (a limit of limits.h); it then
// changes nothing.
class StoreEngine {
 public:
  // All must outlive the engine.
  StoreEngine(const Limits* limits, WaiterQuota* quota, Journal* journal);
  ~StoreEngine();
  StoreEngine(const StoreEngine&) = delete;
  StoreEngine& operator=(const StoreEngine&) = delete;

  // RevisionReply.
  void Set(const Call& call, absl::string_view key, std::string value,
           Outbox& out);

  // ValueReply. Waits for the key.
  // DEADLINE_EXCEEDED (`wait timeout after 100ms, keys: a`).
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

  // FlagReply: whether there was such a key.
  void DeleteKey(const Call& call, absl::string_view key, Outbox& out);

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

  // RevisionReply. All or nothing, in one revision; of a key that appears
  // twice the last value stays.
  // INVALID_ARGUMENT (as many keys as values are needed).
  void MultiSet(const Call& call, absl::Span<const std::string> keys,
                std::vector<std::string> values, Outbox& out);

  // NumberReply.
  void NumKeys(const Call& call, Outbox& out) const;

  // KeysReply: at most `count_max` keys that begin with `prefix` and are
  // greater than `after`.
  void ListKeys(const Call& call, absl::string_view prefix,
                absl::string_view after, int64_t count_max, Outbox& out) const;

  // Fails every waiter whose deadline is at or before `now`.
  void Expire(Instant now, Outbox& out);

  // Fails the waiter with `status`; false when it does not wait here.
  bool Cancel(WaiterId waiter, const absl::Status& status, Outbox& out);

  // Fails all waiters of the member.
  void FailMember(const MemberId& member, const absl::Status& status,
                  Outbox& out);

  std::optional<Instant> NextDeadline() const;

  EntryRecord RecordOf(absl::string_view key) const;

  // Into a new engine.
  void Restore(EntryRecord record);
  void RestoreRevision(int64_t revision) { revision_ = revision; }

  int64_t revision() const { return revision_; }
  int64_t keys() const { return static_cast<int64_t>(entries_.size()); }
  int64_t bytes() const { return bytes_; }
  int64_t waiters() const { return static_cast<int64_t>(waiters_.size()); }

  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    Value value;
    int64_t revision = 0;
  };

  enum class Awaited { kValue, kValues, kPresence };

  struct Waiter {
    WaiterId id;
    MemberId member;
    Awaited awaited;
    std::vector<std::string> keys;      // as asked for
    std::vector<std::string> distinct;  // the same, ascending, once each
    int64_t missing = 0;                // how many of `distinct` are absent
    uint64_t order = 0;                 // of parking
    Duration timeout{};
    Instant deadline;
  };

  using Waiters = absl::btree_map<uint64_t, Waiter*>;  // by order

  absl::Status CheckKey(absl::string_view key) const;
  absl::Status CheckKeys(absl::Span<const std::string> keys) const;
  absl::Status CheckRoom(absl::string_view key, const Entry* present,
                         int64_t value_bytes) const;
  const Entry* Find(absl::string_view key) const;
  bool Store(absl::string_view key, Value value);
  void WakeWaiters(absl::string_view key, Outbox& out);
  void Park(const Call& call, Awaited awaited, std::vector<std::string> keys,
            Duration timeout, Instant now, Outbox& out);
  Payload Collect(Awaited awaited, absl::Span<const std::string> keys) const;
  void Remove(Waiter* waiter);
  std::string TimeoutText(const Waiter& waiter) const;

  const Limits& limits_;
  WaiterQuota& quota_;
  Journal& journal_;

  absl::btree_map<std::string, Entry> entries_;
  int64_t bytes_ = 0;
  int64_t revision_ = 0;

  // A waiter is listed under each of its keys, the present ones too, so that a
  // key that is deleted again counts as missing again.
  absl::flat_hash_map<WaiterId, std::unique_ptr<Waiter>> waiters_;
  absl::flat_hash_map<std::string, Waiters> waiters_by_key_;
  absl::flat_hash_map<MemberId, Waiters> waiters_by_member_;
  absl::btree_set<std::pair<Instant, uint64_t>> deadlines_;
  absl::btree_map<uint64_t, Waiter*> waiters_by_order_;
  uint64_t next_order_ = 1;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_STORE_ENGINE_H_
