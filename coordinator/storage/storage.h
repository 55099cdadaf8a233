// The interface of the storage that holds the records of all jobs.

#ifndef MUSTER_COORDINATOR_STORAGE_STORAGE_H_
#define MUSTER_COORDINATOR_STORAGE_STORAGE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace muster::coordinator {

// One change: a key with its new value, or without a value to erase it.
struct StorageChange {
  std::string key;
  std::optional<std::string> value;
};

// Storage is an ordered map from byte strings to byte strings that outlives the
// process. One thread at a time.
class Storage {
 public:
  virtual ~Storage() = default;

  // Calls `entry` for everything that is stored, in the order of the keys, and
  // stops at its first error, which it returns.
  // Errors: UNAVAILABLE (cannot be read), DATA_LOSS (what is there is corrupt).
  virtual Status Load(
      absl::FunctionRef<Status(absl::string_view key, absl::string_view value)>
          entry) = 0;

  // Applies the changes in their order, all or none. With OK they survive the
  // end of the process.
  // Errors: UNAVAILABLE (the disk is full, gone or broken: the text says so).
  //   Whether the changes are stored is then unknown.
  virtual Status Write(const std::vector<StorageChange>& changes) = 0;

  // Erases every key that begins with `prefix`, which is not empty.
  // Errors: as Write.
  virtual Status ErasePrefix(absl::string_view prefix) = 0;

  // Puts all that was written on the disk: with OK it also survives the end of
  // the machine.
  // Errors: as Write.
  virtual Status Sync() = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_STORAGE_H_
