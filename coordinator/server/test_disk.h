#ifndef MUSTER_COORDINATOR_SERVER_TEST_DISK_H_
#define MUSTER_COORDINATOR_SERVER_TEST_DISK_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/storage/storage.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// The storage, which outlives the servers of a test. While it is shut, writes
// wait.
class Disk {
 public:
  void Shut() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
  }
  void Open() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  void Break() {
    const std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
  }
  // Returns a copy of the present records, as after the end of the process.
  std::map<std::string, std::string> Records() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return records_;
  }

  Status Write(const std::vector<StorageChange>& changes) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!open_) changed_.wait(lock);
    if (broken_) return UnavailableError("no space left on device");
    for (const StorageChange& change : changes) {
      if (change.value.has_value()) {
        records_[change.key] = *change.value;
      } else {
        records_.erase(change.key);
      }
    }
    return OkStatus();
  }

  Status ErasePrefix(absl::string_view prefix) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(records_, [&](const auto& record) {
      return absl::StartsWith(record.first, prefix);
    });
    return OkStatus();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  bool broken_ = false;
  std::map<std::string, std::string> records_;
};

class DiskStorage : public Storage {
 public:
  explicit DiskStorage(Disk* disk) : disk_(*disk) {}

  Status Load(absl::FunctionRef<Status(absl::string_view, absl::string_view)>
                  entry) override {
    for (const auto& [key, value] : disk_.Records()) {
      Status status = entry(key, value);
      if (!status.ok()) return status;
    }
    return OkStatus();
  }
  Status Write(const std::vector<StorageChange>& changes) override {
    return disk_.Write(changes);
  }
  Status ErasePrefix(absl::string_view prefix) override {
    return disk_.ErasePrefix(prefix);
  }
  Status Sync() override { return OkStatus(); }

 private:
  Disk& disk_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_TEST_DISK_H_
