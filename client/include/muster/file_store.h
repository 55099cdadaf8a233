// A store in a file that processes share.

#ifndef MUSTER_FILE_STORE_H_
#define MUSTER_FILE_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/export.h"
#include "muster/store.h"

namespace MUSTER_EXPORT muster {

// FileStore keeps its keys in a file. The processes are on one host, or on
// hosts that share a folder whose file system has flock. It has the basic part
// of Store without DeleteKey, because the file only grows. NumKeys counts one
// key of the file's own, too. Thread-safe.
//
// The file must not be that of an earlier job, whose keys are still in it. The
// last store to be destroyed removes the file if at least `world_size` stores
// of it were destroyed. A killed process leaves the file behind.
//
// Every call may throw DistStoreError: kDeadlineExceeded (a stopped process
// keeps the file locked), kDataLoss (the file is damaged), or the code of a
// system error (no such folder, no permission, no space left).
class FileStore : public Store {
 public:
  // Creates the file if there is none. With world_size -1 nothing removes it.
  explicit FileStore(const std::string& path, int world_size = -1);
  ~FileStore() override;

  using Store::Set;
  using Store::Wait;
  void Set(std::string_view key, std::string_view value) override;
  // Throws DistStoreError: kDeadlineExceeded (`Timeout waiting for key: K after
  // N ms`).
  std::string Get(std::string_view key) override;
  int64_t Add(std::string_view key, int64_t delta) override;
  bool Check(const std::vector<std::string>& keys) override;
  std::string CompareSet(std::string_view key, std::string_view expected,
                         std::string_view desired) override;
  int64_t NumKeys() override;
  std::vector<std::string> ListKeys(std::string_view prefix) override;
  void Wait(const std::vector<std::string>& keys,
            std::chrono::milliseconds timeout) override;
  // The clone and this store count as one store.
  std::shared_ptr<Store> Clone() override;
  void SetTimeout(std::chrono::milliseconds timeout) override;
  std::chrono::milliseconds timeout() const override;

  const std::string& path() const;
  // How many stores of the file are open in all processes; those of killed
  // processes count, too.
  int64_t OpenStores();

 private:
  class MUSTER_HIDDEN File;

  FileStore(std::shared_ptr<File> file, std::chrono::milliseconds timeout);

  const std::shared_ptr<File> file_;
  std::atomic<std::chrono::milliseconds> timeout_{kDefaultTimeout};
};

}  // namespace muster

#endif  // MUSTER_FILE_STORE_H_
