// The calls that wait for a key or a queue item in a store.

#ifndef MUSTER_COORDINATOR_CORE_STORE_WAITERS_H_
#define MUSTER_COORDINATOR_CORE_STORE_WAITERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/watch_history.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

struct StoreWaiter {
  // kItem: a pop. kChanges: a watch.
  enum class Awaited { kValue, kValues, kPresence, kItem, kChanges };

  WaiterId id;
  MemberId member;
  Awaited awaited = Awaited::kValue;
  std::vector<std::string> keys{};  // as in the call; kItem: the queue
  // `keys` in ascending order, once each. Empty for kItem and kChanges.
  std::vector<absl::string_view> distinct{};
  int64_t missing = 0;       // number of `distinct` that are absent
  WatchSelector selector{};  // kChanges
  uint64_t order = 0;        // order of parking
  Duration timeout{};
  Instant since;
  Instant deadline;

  StoreWaiter() = default;
  // Moving a vector keeps its elements in place. In a copy, `distinct` would
  // refer to the original's keys.
  StoreWaiter(StoreWaiter&&) = default;
  StoreWaiter& operator=(StoreWaiter&&) = default;
};

// StoreWaiters finds parked calls by what they wait for, by their deadline and
// by their member. It sends no answers. Pointers to waiters are valid until
// Remove.
class StoreWaiters {
 public:
  using ByOrder = absl::btree_map<uint64_t, StoreWaiter*>;

  // `quota` must outlive the table.
  explicit StoreWaiters(WaiterQuota* quota) : quota_(*quota) {}

  // Errors: RESOURCE_EXHAUSTED (waiters, waiter_bytes).
  Status Park(std::unique_ptr<StoreWaiter> waiter);
  void Remove(StoreWaiter* waiter);

  // Null: does not wait here.
  StoreWaiter* Find(WaiterId id) const;

  // Changes the waiter's id. Returns false if `from` does not wait here.
  bool Retarget(WaiterId from, WaiterId to);

  // The key now holds something. Returns the Get, MultiGet and Wait calls that
  // miss nothing more, by order.
  std::vector<StoreWaiter*> Appeared(absl::string_view key);
  void Vanished(absl::string_view key);

  // The pop of the queue that has waited longest, or null.
  StoreWaiter* FirstPop(absl::string_view key) const;

  // Adds the watches that match the key.
  void FindWatches(absl::string_view key, ByOrder& watches) const;

  // The first whose deadline is at or before `now`, or null.
  StoreWaiter* FirstDue(Instant now) const;
  std::optional<Instant> NextDeadline() const;

  // Null: no call of the member waits.
  StoreWaiter* FindFirst(const MemberId& member) const;

  const ByOrder& all() const { return by_order_; }
  int64_t size() const { return static_cast<int64_t>(waiters_.size()); }
  int64_t pops() const { return pops_; }
  bool has_watches() const {
    return !watches_by_key_.empty() || !watches_by_prefix_.empty();
  }

  Status CheckInvariants() const;

 private:
  using ByKey = absl::flat_hash_map<std::string, ByOrder>;

  static int64_t CountBytes(const StoreWaiter& waiter);
  static void Unlist(ByKey& by_key, absl::string_view key, uint64_t order);

  WaiterQuota& quota_;
  absl::flat_hash_map<WaiterId, std::unique_ptr<StoreWaiter>> waiters_;
  ByOrder by_order_;
  absl::btree_set<std::pair<Instant, uint64_t>> deadlines_;
  absl::flat_hash_map<MemberId, ByOrder> by_member_;

  // A waiter is listed under each of its keys, the present ones too, so that a
  // key that is deleted again counts as missing again.
  ByKey by_key_;
  ByKey pops_by_key_;
  int64_t pops_ = 0;
  ByKey watches_by_key_;
  ByKey watches_by_prefix_;
  // The number of watched prefixes by length. A changed key is looked up once
  // per length.
  absl::btree_map<size_t, int64_t> prefix_lengths_;
  uint64_t next_order_ = 1;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_STORE_WAITERS_H_
