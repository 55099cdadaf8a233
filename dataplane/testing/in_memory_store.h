#ifndef MUSTER_DATAPLANE_TESTING_IN_MEMORY_STORE_H_
#define MUSTER_DATAPLANE_TESTING_IN_MEMORY_STORE_H_

#include <atomic>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/bootstrap_store.h"

namespace muster::dataplane::testing {

// A BootstrapStore for ranks that are threads of one process.
class InMemoryStore : public BootstrapStore {
 public:
  Status Set(const std::string& key, const std::string& value) override;
  StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                         Instant deadline) override;
  StatusOr<int64_t> Add(const std::string& key, int64_t delta) override;

  void Forget(const std::string& key, Instant deadline) override;

  // The number of keys.
  size_t size() const;

  // The number of calls of each kind.
  int sets() const { return sets_; }
  int gets() const { return gets_; }

 private:
  std::atomic<int> sets_{0};
  std::atomic<int> gets_{0};

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> values_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_IN_MEMORY_STORE_H_
