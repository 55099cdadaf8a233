// A store in a file that processes share.

#ifndef MUSTER_CLIENT_FILE_STORE_H_
#define MUSTER_CLIENT_FILE_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/store.h"

namespace muster {

// For processes of one host, or of hosts that share a folder whose file system
// has flock. Has the basic part of Store without DeleteKey, because the file
// only grows; NumKeys counts the file's own key, too. Thread-safe.
//
// The file must not be that of a job before: its keys are still there. The last
// store to be destroyed removes it if at least `world_size` stores of it have
// been; a process that was killed leaves it.
//
// Every call may throw DistStoreError: kDeadlineExceeded (a process that was
// stopped keeps the file locked), kDataLoss (the file is damaged), or with the
// system's reason (no such folder, no permission, no space left).
class FileStore : public Store {
 public:
  // Makes the file if there is none. world_size -1: nobody removes it.
  explicit FileStore(const std::string& path, int world_size = -1);
  ~FileStore() override;

  using Store::Set;
  using Store::Wait;
  void Set(std::string_view key, std::string_view value) override;
  // `Timeout waiting for key: K after N ms`.
  std::string Get(std::string_view key) override;
  int64_t Add(std::string_view key, int64_t delta) override;
  bool Check(const std::vector<std::string>& keys) override;
  std::string CompareSet(std::string_view key, std::string_view expected,
                         std::string_view desired) override;
  int64_t NumKeys() override;
  std::vector<std::string> ListKeys(std::string_view prefix) override;
  void Wait(const std::vector<std::string>& keys,
            std::chrono::milliseconds timeout) override;
  // Counts as one store with this one.
  std::shared_ptr<Store> Clone() override;
  void SetTimeout(std::chrono::milliseconds timeout) override;
  std::chrono::milliseconds timeout() const override;

  const std::string& path() const;
  // How many stores of the file there are, in all processes; those that were
  // killed count.
  int64_t OpenStores();

 private:
  class File;

  FileStore(std::shared_ptr<File> file, std::chrono::milliseconds timeout);

  const std::shared_ptr<File> file_;
  std::atomic<std::chrono::milliseconds> timeout_{kDefaultTimeout};
};

}  // namespace muster

#endif  // MUSTER_CLIENT_FILE_STORE_H_
