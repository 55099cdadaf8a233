// Ownership of a key in etcd for as long as this process is alive.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_LEASE_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_LEASE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "coordinator/storage/etcd/etcd_client.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

struct EtcdLeaseOptions {
  // The key whose existence is the ownership, and its value, which tells others
  // who the owner is.
  std::string key;
  std::string value;
  // From the last renewal until etcd deletes the key; whole seconds.
  std::chrono::seconds ttl{5};
  // Called once, on the lease's thread, when the ownership has ended against
  // this process's will.
  std::function<void(const Status& status)> on_lost;
};

// EtcdLease keeps a key with an etcd lease, which a thread renews three times
// in its time. etcd gives the key to nobody else before the lease has ended
// there, and this process takes the ownership for over before that: `valid` is
// true until `ttl`, less a tenth, after the last answered renewal was sent, by
// this process's steady clock. A process that was stopped, cut off or slow thus
// knows it at the next call of `valid`, whatever other threads have noticed.
class EtcdLease {
 public:
  // Takes the key, and waits for it while another process has it. `waiting` is
  // called with the owner's value, when it has changed. `stop` is asked about
  // ten times a second, and ends the wait with CANCELLED.
  // Errors: CANCELLED, and those of etcd but UNAVAILABLE, for which it waits.
  static StatusOr<std::unique_ptr<EtcdLease>> Acquire(
      EtcdClient& client, EtcdLeaseOptions options,
      const std::function<void(const std::string& owner)>& waiting,
      const std::function<bool()>& stop);

  // Ends the lease, so that another process can take the key at once. Call it
  // after everything that needs `valid` has ended.
  ~EtcdLease();
  EtcdLease(const EtcdLease&) = delete;
  EtcdLease& operator=(const EtcdLease&) = delete;

  // The create revision of the key, which no other ownership has.
  int64_t revision() const { return revision_; }
  const std::string& key() const { return options_.key; }

  // Thread-safe; reads a clock.
  bool valid() const {
    return std::chrono::steady_clock::now().time_since_epoch().count() <
           valid_until_.load(std::memory_order_acquire);
  }

 private:
  EtcdLease(EtcdClient& client, EtcdLeaseOptions options);
  StatusOr<bool> TryTake(std::string* owner);
  void Extend(std::chrono::steady_clock::time_point sent);
  void RenewLoop();

  EtcdClient& client_;
  const EtcdLeaseOptions options_;
  int64_t lease_ = 0;
  int64_t revision_ = 0;
  std::atomic<int64_t> valid_until_ = 0;

  Mutex mu_;
  CondVar stops_;
  bool stopping_ MUSTER_GUARDED_BY(mu_) = false;
  std::thread renewals_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_LEASE_H_
