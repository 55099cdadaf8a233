// A store within one process.

#ifndef MUSTER_HASH_STORE_H_
#define MUSTER_HASH_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/export.h"
#include "muster/store.h"

namespace MUSTER_EXPORT muster {

// HashStore keeps its keys in this process. This object and its clones share
// them; the keys are gone with the last of these. It has all of Store except
// lifetimes of keys and watches. Thread-safe.
class HashStore : public Store {
 public:
  HashStore();
  ~HashStore() override;

  using Store::Set;
  using Store::Wait;
  void Set(std::string_view key, std::string_view value) override;
  std::string Get(std::string_view key) override;
  int64_t Add(std::string_view key, int64_t delta) override;
  bool Check(const std::vector<std::string>& keys) override;
  std::string CompareSet(std::string_view key, std::string_view expected,
                         std::string_view desired) override;
  bool DeleteKey(std::string_view key) override;
  int64_t NumKeys() override;
  std::vector<std::string> ListKeys(std::string_view prefix) override;
  void Wait(const std::vector<std::string>& keys,
            std::chrono::milliseconds timeout) override;
  bool HasExtendedApi() const override { return true; }
  void Append(std::string_view key, std::string_view value) override;
  std::vector<std::string> MultiGet(
      const std::vector<std::string>& keys) override;
  void MultiSet(const std::vector<std::string>& keys,
                const std::vector<std::string>& values) override;
  std::optional<StoreValue> TryGet(std::string_view key) override;
  CompareAndSetResult CompareAndSet(std::string_view key,
                                    int64_t expected_revision,
                                    std::string_view desired,
                                    const SetOptions& options = {}) override;
  int64_t DeletePrefix(std::string_view prefix) override;
  void QueuePush(std::string_view key, std::string_view value) override;
  std::string QueuePop(std::string_view key, bool block = true) override;
  int64_t QueueLen(std::string_view key) override;
  std::shared_ptr<Store> Clone() override;
  void SetTimeout(std::chrono::milliseconds timeout) override;
  std::chrono::milliseconds timeout() const override;

 private:
  class MUSTER_HIDDEN Map;

  HashStore(std::shared_ptr<Map> map, std::chrono::milliseconds timeout);

  const std::shared_ptr<Map> map_;
  std::atomic<std::chrono::milliseconds> timeout_{kDefaultTimeout};
};

}  // namespace muster

#endif  // MUSTER_HASH_STORE_H_
