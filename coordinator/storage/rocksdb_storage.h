#ifndef MUSTER_COORDINATOR_STORAGE_ROCKSDB_STORAGE_H_
#define MUSTER_COORDINATOR_STORAGE_ROCKSDB_STORAGE_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "coordinator/storage/storage.h"

namespace muster::coordinator {

// Opens the database in the folder `path`, which is made when it is missing.
// One process at a time. A log whose end was being written when the process
// ended is good; any other damage is refused before anything is changed.
// Errors: FAILED_PRECONDITION (another process has it open, or another version
//   wrote it), UNAVAILABLE (no such disk, no right to it, no room on it),
//   DATA_LOSS (a file is missing or damaged). All name the path.
StatusOr<std::unique_ptr<Storage>> OpenRocksDb(const std::string& path);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ROCKSDB_STORAGE_H_
