// The interface of the storage that holds the records of all jobs.

#ifndef MUSTER_COORDINATOR_STORAGE_STORAGE_H_
#define MUSTER_COORDINATOR_STORAGE_STORAGE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// One change: a key and its new value; without a value the key is erased.
struct StorageChange {
  std::string key;
  std::optional<std::string> value;
};

// Storage is an ordered map from byte strings to byte strings that outlives the
// process. One thread at a time, but for owned() and health().
class Storage {
 public:
  virtual ~Storage() = default;

  // Calls `entry` for every entry, in the order of the keys. Stops at its first
  // error and returns it.
  // Errors: UNAVAILABLE (cannot be read), DATA_LOSS (corrupt).
  virtual Status Load(
      absl::FunctionRef<Status(absl::string_view key, absl::string_view value)>
          entry) = 0;

  // Applies the changes in their order, all or none. If it returns OK, they
  // survive the end of the process.
  // Errors: UNAVAILABLE (the disk is full, gone or broken: the text says so).
  //   Whether the changes are stored is then unknown.
  virtual Status Write(const std::vector<StorageChange>& changes) = 0;

  // Erases every key that begins with `prefix`, which is not empty.
  // Errors: those of Write.
  virtual Status ErasePrefix(absl::string_view prefix) = 0;

  // Syncs all writes to the disk: if it returns OK, they also survive a crash
  // of the machine.
  // Errors: those of Write.
  virtual Status Sync() = 0;

  // Whether this process owns the storage. If not, another process may have
  // changed it, so nothing may be answered from memory. Thread-safe.
  virtual bool owned() const { return true; }

  // Whether a write would be stored now. Thread-safe, and fast while it would.
  // Errors: RESOURCE_EXHAUSTED (writes wait for space; the text says where),
  //   UNAVAILABLE (writes have waited for some seconds).
  virtual Status health() const { return OkStatus(); }
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_STORAGE_H_
