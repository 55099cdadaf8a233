// etcd in memory, for tests.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_TESTING_MODEL_ETCD_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_TESTING_MODEL_ETCD_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/storage/etcd/etcd_kv.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace etcdserverpb {
class Compare;
class RequestOp;
}  // namespace etcdserverpb

namespace muster::coordinator::testing {

// ModelEtcd answers as etcd 3.4 does, by its documentation: revisions, ranges
// of old revisions, transactions within transactions, compaction, leases, and
// its limits. Thread-safe.
class ModelEtcd : public EtcdKv {
 public:
  // The end of a request, as a test wants it.
  enum class Fate {
    kAnswered,
    kNotApplied,  // UNAVAILABLE, before it was applied
    kLost,        // UNAVAILABLE, after it was applied
    kLate,        // for a transaction: UNAVAILABLE, and it is applied some
                  // requests later
    kNoSpace,     // RESOURCE_EXHAUSTED for a request that puts or grants
    kRefused,     // PERMISSION_DENIED
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
  // Moves the clock of the leases. A lease ends when its time is over to the
  // millisecond; etcd takes up to a second more.
  void AdvanceClock(std::chrono::milliseconds time) MUSTER_LOCKS_EXCLUDED(mu_);

  // 0: there is no such key.
  int64_t ModRevision(const std::string& key) MUSTER_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> Keys() MUSTER_LOCKS_EXCLUDED(mu_);
  int64_t compacted() MUSTER_LOCKS_EXCLUDED(mu_);
  int64_t requests() MUSTER_LOCKS_EXCLUDED(mu_);

  Status Range(const etcdserverpb::RangeRequest& request,
               etcdserverpb::RangeResponse& response) override;
  Status Txn(const etcdserverpb::TxnRequest& request,
             etcdserverpb::TxnResponse& response) override;
  Status Compact(const etcdserverpb::CompactionRequest& request,
                 etcdserverpb::CompactionResponse& response) override;
  StatusOr<int64_t> GrantLease(std::chrono::seconds ttl) override;
  Status KeepLeaseAlive(int64_t lease,
                        std::chrono::milliseconds member_timeout) override;
  Status RevokeLease(int64_t lease) override;

 private:
  struct Value {
    std::string bytes;
    int64_t create_revision = 0;
    int64_t mod_revision = 0;
    int64_t version = 0;  // 0: erased at mod_revision
    int64_t lease = 0;
  };
  struct Lease {
    std::chrono::milliseconds ttl;
    std::chrono::milliseconds end;  // of the clock
  };
  // Keys from the first to before the second.
  using Interval = std::pair<std::string, std::string>;

  // With the change that is made now.
  int64_t Newest() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return revision_ + (changed_ ? 1 : 0);
  }
  const Value* Find(const std::string& key, int64_t revision) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<std::string> KeysIn(const Interval& interval,
                                  int64_t revision) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets or, without `bytes`, erases a key at the revision after the current
  // one, which Conclude makes the current one.
  void Set(const std::string& key, const std::string* bytes, int64_t lease)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Conclude() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLease(int64_t lease) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status Begin(bool puts, Fate* fate) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status CheckRevision(int64_t revision) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReadRange(const etcdserverpb::RangeRequest& request,
                 etcdserverpb::RangeResponse& response)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Applies a transaction that was checked.
  Status Run(const etcdserverpb::TxnRequest& request,
             etcdserverpb::TxnResponse& response)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunLate() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Holds(const etcdserverpb::Compare& compare) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Decide(const etcdserverpb::TxnRequest& request,
              std::vector<bool>& outcomes) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status CheckOps(const etcdserverpb::TxnRequest& request,
                  std::vector<bool>::const_iterator& outcome) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Apply(const etcdserverpb::TxnRequest& request,
             std::vector<bool>::const_iterator& outcome,
             etcdserverpb::TxnResponse& response)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  std::function<Fate()> fates_ MUSTER_GUARDED_BY(mu_);
  // The values that a key had, by revision.
  std::map<std::string, std::map<int64_t, Value>> keys_ MUSTER_GUARDED_BY(mu_);
  int64_t revision_ MUSTER_GUARDED_BY(mu_) = 1;
  bool changed_ MUSTER_GUARDED_BY(mu_) = false;  // since `revision_`
  int64_t compacted_ MUSTER_GUARDED_BY(mu_) = 0;
  int64_t requests_ MUSTER_GUARDED_BY(mu_) = 0;
  int64_t compact_at_ MUSTER_GUARDED_BY(mu_) = 0;
  // Transactions, encoded, by the number of the request before which they are
  // applied.
  std::multimap<int64_t, std::string> late_ MUSTER_GUARDED_BY(mu_);
  std::map<int64_t, Lease> leases_ MUSTER_GUARDED_BY(mu_);
  int64_t granted_ MUSTER_GUARDED_BY(mu_) = 0;
  std::chrono::milliseconds clock_ MUSTER_GUARDED_BY(mu_){0};
};

}  // namespace muster::coordinator::testing

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_TESTING_MODEL_ETCD_H_
