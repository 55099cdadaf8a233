// The space that etcd has for the storages of a process.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_SPACE_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_SPACE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>

#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// EtcdSpace is what the storages of one etcd know together: whether it refuses
// requests for lack of space, and when its history was compacted last.
// Thread-safe.
class EtcdSpace {
 public:
  // `compaction_interval`: etcd reads its whole history for a compaction.
  explicit EtcdSpace(
      std::chrono::milliseconds compaction_interval = std::chrono::seconds(10))
      : compaction_interval_(compaction_interval) {}

  // A request that is sent until it succeeds. It counts for Check from its
  // first failure to its end.
  class Request {
   public:
    explicit Request(EtcdSpace& space) : space_(space) {}
    ~Request() MUSTER_LOCKS_EXCLUDED(space_.mu_);
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    void Failed(const Status& status) MUSTER_LOCKS_EXCLUDED(space_.mu_);

   private:
    friend class EtcdSpace;
    EtcdSpace& space_;
    // The time of the first failure; unset: it has not failed.
    std::optional<std::chrono::steady_clock::time_point> since_;
    Status status_;  // of the last failure
  };

  // Fast while no request fails.
  // Errors: RESOURCE_EXHAUSTED (a request waits for space), UNAVAILABLE (one
  //   has waited for an answer for some seconds).
  Status Check() const MUSTER_LOCKS_EXCLUDED(mu_);

  // Whether it is time for a compaction, which the caller then makes.
  bool TakeCompaction() MUSTER_LOCKS_EXCLUDED(mu_);

 private:
  const std::chrono::milliseconds compaction_interval_;
  mutable Mutex mu_;
  // The failed requests, which Check reads under the lock, and their number.
  std::set<const Request*> failed_ MUSTER_GUARDED_BY(mu_);
  std::atomic<int64_t> count_ = 0;
  std::optional<std::chrono::steady_clock::time_point> compacted_
      MUSTER_GUARDED_BY(mu_);
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_SPACE_H_
