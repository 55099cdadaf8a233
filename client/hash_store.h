// A store within one process.

#ifndef MUSTER_CLIENT_HASH_STORE_H_
#define MUSTER_CLIENT_HASH_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/store.h"

namespace muster {

// The keys are those of this object and of its clones; they go with the last
// of them. Has all of Store but lifetimes of keys and watches. Thread-safe.
class HashStore : public Store {
 public:
  HashStore();
  ~HashStore() override;

  using Store::Set;
  using Store::Wait;
  void Set(absl::string_view key, absl::string_view value) override;
  std::string Get(absl::string_view key) override;
  int64_t Add(absl::string_view key, int64_t delta) override;
  bool Check(const std::vector<std::string>& keys) override;
  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) override;
  bool DeleteKey(absl::string_view key) override;
  int64_t NumKeys() override;
  std::vector<std::string> ListKeys(absl::string_view prefix) override;
  void Wait(const std::vector<std::string>& keys,
            std::chrono::milliseconds timeout) override;
  bool HasExtendedApi() const override { return true; }
  void Append(absl::string_view key, absl::string_view value) override;
  std::vector<std::string> MultiGet(
      const std::vector<std::string>& keys) override;
  void MultiSet(const std::vector<std::string>& keys,
                const std::vector<std::string>& values) override;
  std::optional<StoreValue> TryGet(absl::string_view key) override;
  CompareAndSetResult CompareAndSet(absl::string_view key,
                                    int64_t expected_revision,
                                    absl::string_view desired,
                                    const SetOptions& options = {}) override;
  int64_t DeletePrefix(absl::string_view prefix) override;
  void QueuePush(absl::string_view key, absl::string_view value) override;
  std::string QueuePop(absl::string_view key, bool block = true) override;
  int64_t QueueLen(absl::string_view key) override;
  std::shared_ptr<Store> Clone() override;
  void SetTimeout(std::chrono::milliseconds timeout) override;
  std::chrono::milliseconds timeout() const override;

 private:
  class Map;

  HashStore(std::shared_ptr<Map> map, std::chrono::milliseconds timeout);

  const std::shared_ptr<Map> map_;
  std::atomic<std::chrono::milliseconds> timeout_{kDefaultTimeout};
};

}  // namespace muster

#endif  // MUSTER_CLIENT_HASH_STORE_H_
