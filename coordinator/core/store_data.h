// The contents of a store: values, queues, and when they expire.

#ifndef MUSTER_COORDINATOR_CORE_STORE_DATA_H_
#define MUSTER_COORDINATOR_CORE_STORE_DATA_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/total_memory.h"
#include "coordinator/core/watch_history.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// When a value expires.
struct Lifetime {
  std::optional<Duration> ttl{};
  Instant expires_at{};  // if there is a ttl
  MemberId owner{};      // of an ephemeral key

  bool unlimited() const { return !ttl.has_value() && owner.value().empty(); }
};

// The part of the store that survives a restart (records.h): each value, each
// item of a queue, and the revision. A time to live starts afresh.
struct EntryRecord {
  std::string key;  // name
  Value value;      // null: erased
  int64_t revision = 0;
  Lifetime lifetime{};
};
struct ItemRecord {
  std::string key;     // name
  int64_t number = 0;  // name; ascending within the queue
  Value value;         // null: erased
};
struct StoreRecord {
  int64_t revision = 0;
  // All changes after this revision have records. None: no change has one.
  std::optional<int64_t> history_after{};
};

// A change in the watch history. It has a record only while watches use the
// history (StoreEngine::Watch).
struct ChangeRecord {
  int64_t revision = 0;  // name
  std::string key;       // name
  ChangeKind kind = ChangeKind::kPut;
  // Null for kPut: the key still has the value of this revision, which is in
  // its EntryRecord.
  Value value{};
  bool erased = false;
};

// StoreData holds the contents of a store, without rules about permissions or
// timing. A key holds a value, or a queue of at least one item, or nothing.
//
// Only Advance, Put, Erase, Push, Pop and EraseQueue change it. They record
// each change in the journal and charge its memory to the limits.
class StoreData {
 public:
  struct Entry {
    Value value;
    int64_t revision = 0;
    std::unique_ptr<const Lifetime> lifetime;  // null: unlimited
  };
  struct Item {
    int64_t number = 0;  // the revision in which it was pushed
    Value value;
  };
  using Entries = absl::btree_map<std::string, Entry>;
  using Queue = std::deque<Item>;
  using Queues = absl::btree_map<std::string, Queue>;

  // Both must outlive the data.
  StoreData(const Limits* limits, Journal* journal);

  // Null: the key holds no value, or no queue. Valid until the next change.
  const Entry* Find(absl::string_view key) const;
  const Queue* FindQueue(absl::string_view key) const;
  bool Contains(absl::string_view key) const {
    return Find(key) != nullptr || FindQueue(key) != nullptr;
  }

  // INVALID_ARGUMENT (`set: key "k" is a queue of 2 items, no value`).
  Status CheckIsNoQueue(absl::string_view verb, absl::string_view key) const;

  // Whether there is room for a value of `value_bytes` under the key, or for
  // one more item of that size. Errors: RESOURCE_EXHAUSTED.
  Status CheckRoom(absl::string_view key, int64_t value_bytes) const;
  Status CheckItemRoom(absl::string_view key, int64_t value_bytes) const;

  // Whether there is memory for more keys, and for `bytes` of keys and values.
  Status CheckMemoryFor(int64_t keys, int64_t bytes,
                        const Offer& offer = {}) const {
    return CheckMemory(limits_, kKeyMemory * keys + bytes, offer);
  }

  // Begins the next revision, in which the changes after it are made.
  int64_t Advance() { return ++revision_; }

  // Writes a value; there must be room and no queue. Without `lifetime` a
  // present value keeps its own. Returns whether the key is new.
  bool Put(absl::string_view key, Value value,
           std::optional<Lifetime> lifetime);

  // Removes the value of the key, which must be there.
  void Erase(absl::string_view key, ChangeKind why);

  // Appends an item. Returns whether the queue is new.
  bool Push(absl::string_view key, Value item);

  // Takes the first item of the queue, which must be there.
  Value Pop(absl::string_view key);

  // Removes the queue of the key, which must be there, with all its items.
  void EraseQueue(absl::string_view key);

  // The key that expires first, if that is at or before `now`.
  std::optional<std::string> FirstExpired(Instant now) const;
  std::optional<Instant> NextExpiry() const;

  // The ephemeral keys of the member, ascending.
  std::vector<std::string> OwnedBy(const MemberId& member) const;

  EntryRecord MakeRecord(absl::string_view key) const;
  ItemRecord MakeRecord(absl::string_view key, int64_t number) const;
  ChangeRecord MakeChangeRecord(int64_t revision, absl::string_view key) const;
  StoreRecord MakeStoreRecord() const {
    return {revision_, history_.stored_after()};
  }

  // See WatchHistory.
  void StoreHistory(int64_t after) { history_.Store(after); }
  void StopStoringHistory() { history_.StopStoring(); }

  // Restore new data: the entries before the changes, these in their order, and
  // the StoreRecord last.
  void Restore(EntryRecord record, Instant now);
  void Restore(ItemRecord record);
  void Restore(ChangeRecord record);
  void Restore(const StoreRecord& record);

  const Entries& entries() const { return entries_; }
  const Queues& queues() const { return queues_; }
  const WatchHistory& history() const { return history_; }
  int64_t bytes() const { return bytes_; }

  // Recomputes the memory that the data holds.
  int64_t CountMemory() const;
  int64_t items() const { return items_; }
  int64_t revision() const { return revision_; }

  Status CheckInvariants() const;

 private:
  void SetLifetime(absl::string_view key, Entry& entry, Lifetime lifetime);
  void Unlink(absl::string_view key, const Entry& entry);
  // Updates the job's memory by the data's current size.
  void Account();

  const Limits& limits_;
  Journal& journal_;
  Entries entries_;
  Queues queues_;
  int64_t bytes_ = 0;
  int64_t items_ = 0;
  int64_t revision_ = 0;
  int64_t accounted_ = 0;
  WatchHistory history_;

  // Indexes of the entries with a lifetime.
  absl::btree_set<std::pair<Instant, std::string>> expiries_;
  absl::btree_map<MemberId, absl::btree_set<std::string>> owned_;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_STORE_DATA_H_
