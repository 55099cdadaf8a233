#ifndef MUSTER_COORDINATOR_STORAGE_ROCKSDB_STORAGE_H_
#define MUSTER_COORDINATOR_STORAGE_ROCKSDB_STORAGE_H_

#include <memory>
#include <string>

#include "coordinator/storage/storage.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// Opens the database in the folder `path`, and creates the folder if it is
// missing. Only one process at a time can open it. Accepts a log that ends in
// an incomplete write; refuses any other damage before it changes anything.
// Errors: FAILED_PRECONDITION (another process has it open, or another version
//   wrote it), UNAVAILABLE (no such disk, no permission, no space), DATA_LOSS
//   (a file is missing or damaged). All name the path.
StatusOr<std::unique_ptr<Storage>> OpenRocksDb(const std::string& path);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ROCKSDB_STORAGE_H_
