// etcd's key-value store in memory, for tests.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_TESTING_MODEL_ETCD_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_TESTING_MODEL_ETCD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/storage/etcd/etcd_kv.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator::testing {

// ModelEtcd answers as etcd 3.4 does, by its documentation: revisions, ranges
// of old revisions, transactions, compaction, and its limits. Thread-safe.
class ModelEtcd : public EtcdKv {
 public:
  // The end of a request, as a test wants it.
  enum class Fate {
    kAnswered,
    kNotApplied,  // UNAVAILABLE, before it was applied
    kLost,        // UNAVAILABLE, after it was applied
    kNoSpace,     // RESOURCE_EXHAUSTED for what writes
  };
  // Asked for each request, in their order.
  void SetFates(std::function<Fate()> next) MUSTER_LOCKS_EXCLUDED(mu_);

  // Changes a key as another client of etcd does.
  void Put(const std::string& key, const std::string& value)
      MUSTER_LOCKS_EXCLUDED(mu_);
  void Erase(const std::string& key) MUSTER_LOCKS_EXCLUDED(mu_);
  // Before the request of that number from now on, another client changes a key
  // and compacts everything before that.
  void CompactBefore(int64_t request) MUSTER_LOCKS_EXCLUDED(mu_);

  int64_t CreateRevision(const std::string& key) MUSTER_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> Keys() MUSTER_LOCKS_EXCLUDED(mu_);
  int64_t compacted() MUSTER_LOCKS_EXCLUDED(mu_);
  int64_t requests() MUSTER_LOCKS_EXCLUDED(mu_);

  Status Range(const etcdserverpb::RangeRequest& request,
               etcdserverpb::RangeResponse& response) override;
  Status Txn(const etcdserverpb::TxnRequest& request,
             etcdserverpb::TxnResponse& response) override;
  Status Compact(const etcdserverpb::CompactionRequest& request,
                 etcdserverpb::CompactionResponse& response) override;

 private:
  struct Value {
    std::string bytes;
    int64_t create_revision = 0;
    int64_t mod_revision = 0;
    int64_t version = 0;  // 0: erased at mod_revision
  };

  const Value* Find(const std::string& key, int64_t revision) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status ReadRange(const etcdserverpb::RangeRequest& request,
                   etcdserverpb::RangeResponse& response)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Set(const std::string& key, const std::string& bytes, bool erased)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status Begin(bool writes, Fate* fate) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  std::function<Fate()> fates_ MUSTER_GUARDED_BY(mu_);
  // The values that a key had, by revision.
  std::map<std::string, std::map<int64_t, Value>> keys_ MUSTER_GUARDED_BY(mu_);
  int64_t revision_ MUSTER_GUARDED_BY(mu_) = 1;
  int64_t compacted_ MUSTER_GUARDED_BY(mu_) = 0;
  int64_t requests_ MUSTER_GUARDED_BY(mu_) = 0;
  int64_t compact_at_ MUSTER_GUARDED_BY(mu_) = 0;
};

}  // namespace muster::coordinator::testing

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_TESTING_MODEL_ETCD_H_
