// A lease of etcd for as long as this process is alive.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_LEASE_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_LEASE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "coordinator/storage/etcd/etcd_kv.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// A clock that never goes back and goes on while the machine sleeps.
std::chrono::nanoseconds BootTime();

struct EtcdLeaseOptions {
  // From the last renewal until etcd ends the lease.
  std::chrono::seconds ttl{5};
  // Called when the lease has ended against this process's will. On any thread.
  std::function<void()> on_end = [] {};
  std::function<std::chrono::nanoseconds()> clock = BootTime;
  // Renews by a thread. Otherwise the caller does, by Renew; for simulations.
  bool has_thread = true;
};

// EtcdLease renews a lease three times in its time. etcd deletes the keys of a
// lease when it ends there, and this process takes it for ended before that:
// `valid` is true until `ttl`, less a tenth, after the last answered renewal
// was sent, by this process's clock. A process that was stopped, cut off or
// slow thus knows it at the next call of `valid`, whatever other threads have
// noticed. What it leaves undone because `valid` was false cannot be made good
// by a renewal that is answered later, so that does not bring the lease back.
class EtcdLease {
 public:
  // `etcd` outlives the result. Errors: those of etcd.
  static StatusOr<std::shared_ptr<EtcdLease>> Grant(EtcdKv& etcd,
                                                    EtcdLeaseOptions options);

  // Calls End.
  ~EtcdLease();
  EtcdLease(const EtcdLease&) = delete;
  EtcdLease& operator=(const EtcdLease&) = delete;

  // etcd's number of the lease.
  int64_t id() const { return id_; }

  // Thread-safe; reads a clock. Once false, it stays so.
  bool valid() const {
    int64_t until = valid_until_.load(std::memory_order_acquire);
    while (options_.clock().count() >= until) {
      // Ends the lease, unless it was extended meanwhile.
      if (valid_until_.compare_exchange_weak(until, 0)) return false;
    }
    return true;
  }

  // Errors: those of etcd. After NOT_FOUND the lease is not valid.
  Status Renew();

  // Ends the lease, so that its keys are deleted at once. Call it after
  // everything that needs `valid` has ended.
  void End();

 private:
  EtcdLease(EtcdKv& etcd, EtcdLeaseOptions options);
  // The end of a lease whose last renewal was sent then.
  int64_t ValidUntil(std::chrono::nanoseconds sent) const;
  void RenewLoop();

  EtcdKv& etcd_;
  const EtcdLeaseOptions options_;
  int64_t id_ = 0;
  // 0: the lease has ended.
  mutable std::atomic<int64_t> valid_until_ = 0;

  Mutex mu_;
  CondVar stops_;
  bool stopping_ MUSTER_GUARDED_BY(mu_) = false;
  std::thread renewals_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_LEASE_H_
