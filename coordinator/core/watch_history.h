// Keeps the last changes of a store for its watches.

#ifndef MUSTER_COORDINATOR_CORE_WATCH_HISTORY_H_
#define MUSTER_COORDINATOR_CORE_WATCH_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/payload.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// Selects the keys of a watch.
struct WatchSelector {
  std::string key;
  bool prefix = false;  // all keys that begin with `key`

  bool Matches(absl::string_view changed) const;
};

// WatchHistory keeps the newest changes of a store, as many as the limits
// watch_history_changes and watch_history_bytes allow. It forgets whole
// revisions, the oldest first, and never the newest one.
//
// It tells the journal which changes have records (ChangeRecord): all of them
// after stored_after(), from Store to StopStoring.
class WatchHistory {
 public:
  // Both must outlive the history.
  WatchHistory(const Limits* limits, Journal* journal)
      : limits_(*limits), journal_(*journal) {}

  // Changes come in ascending order of their revisions and keys.
  void Add(StoreChange change);

  // The key's value of that revision is replaced or deleted.
  void Replaced(int64_t revision, absl::string_view key);

  // Stores the known changes after `after`, and all later ones.
  void Store(int64_t after);
  void StopStoring();

  // None: no changes are stored.
  std::optional<int64_t> stored_after() const;

  // Null: the change is not stored.
  const StoreChange* FindStored(int64_t revision, absl::string_view key) const;

  // Restore a new history: the changes, in their order, then stored_after().
  // BeginAt: the revisions up to `revision` are unknown.
  void Restore(StoreChange change);
  void RestoreStoredAfter(int64_t revision);
  void BeginAt(int64_t revision);

  // OUT_OF_RANGE (`watch: revision 3 is no longer in the history, the oldest
  // to go on from is 17`, or the revision is ahead of `newest`).
  Status CheckComplete(int64_t after, int64_t newest) const;

  // Returns the matching changes of the revisions after `after` and up to
  // `newest`. It stops early, at the end of a revision, when the reply gets
  // large. CheckComplete must hold.
  WatchReply Collect(const WatchSelector& selector, int64_t after,
                     int64_t newest) const;

  // Bytes of the keys and values in the history.
  int64_t bytes() const { return bytes_; }

  // The changes after `after`, in order, which Collect looks at.
  std::vector<std::shared_ptr<const StoreChange>> After(int64_t after) const;

 private:
  using Changes = std::deque<std::shared_ptr<const StoreChange>>;

  Changes::const_iterator FirstAfter(int64_t after) const;
  int64_t BytesMax() const;
  void ForgetFirst();

  const Limits& limits_;
  Journal& journal_;
  Changes changes_;
  int64_t bytes_ = 0;
  int64_t forgotten_through_ = 0;  // the newest revision that was forgotten
  std::optional<int64_t> stored_after_;  // may be older than the history
};

// WatchIndex finds the changes of one step for many watches. If n watches wait
// for one change each, they do not each scan all n changes.
class WatchIndex {
 public:
  // Indexes the changes after `after` up to `newest`, the store's revision.
  WatchIndex(const WatchHistory& history, int64_t after, int64_t newest);

  // Returns what WatchHistory::Collect returns for these changes.
  WatchReply Collect(const WatchSelector& selector) const;

 private:
  const int64_t newest_;
  const std::vector<std::shared_ptr<const StoreChange>> changes_;
  std::vector<size_t> by_key_;  // places in `changes_`
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_WATCH_HISTORY_H_
