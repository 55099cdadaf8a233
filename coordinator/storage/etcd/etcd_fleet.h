// A fleet whose coordinators meet in etcd.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_FLEET_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_FLEET_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/storage/etcd/etcd_client.h"
#include "coordinator/storage/etcd/etcd_kv.h"
#include "coordinator/storage/etcd/etcd_lease.h"
#include "coordinator/storage/etcd/etcd_space.h"
#include "coordinator/storage/etcd/fleet_plan.h"
#include "coordinator/storage/fleet.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace etcdserverpb {
class RequestOp;
class TxnRequest;
}  // namespace etcdserverpb

namespace muster::coordinator {

struct EtcdFleetOptions {
  // All keys of the fleet begin with it; it ends in "/".
  std::string prefix = "/muster/";
  // The shards of a coordinator that has died are free after this.
  std::chrono::seconds lease{5};
  // How often a coordinator looks for changes.
  std::chrono::milliseconds poll_interval{100};
  // Shards go to a new coordinator when the members have not changed for this
  // many times the lease.
  int rebalance_leases = 2;
  // For simulations: a clock of their own, and no threads.
  std::function<std::chrono::nanoseconds()> clock = BootTime;
  bool has_threads = true;
};

// EtcdTrouble counts failed requests, and logs them. Thread-safe.
class EtcdTrouble {
 public:
  explicit EtcdTrouble(const EtcdFleetOptions& options);

  // Counts an error, and logs it if that is due.
  void Count(const Status& status) MUSTER_LOCKS_EXCLUDED(mu_);
  // Counts an error, and waits a moment before the request is sent again.
  // Returns false if it should not be, because there are no threads.
  bool Wait(const Status& status) MUSTER_LOCKS_EXCLUDED(mu_);

  std::map<StatusCode, int64_t> counts() const MUSTER_LOCKS_EXCLUDED(mu_);

 private:
  const std::function<std::chrono::nanoseconds()> clock_;
  const bool has_threads_;
  mutable Mutex mu_;
  CondVar never_;
  std::map<StatusCode, int64_t> counts_ MUSTER_GUARDED_BY(mu_);
  std::chrono::nanoseconds log_at_ MUSTER_GUARDED_BY(mu_){0};
};

// EtcdFleet keeps in etcd
//
//   PREFIX fleet/format      the format of all this
//   PREFIX fleet/members/ID  a FleetMember (fleet.proto), with its lease; ID is
//                            the lease's number
//   PREFIX fleet/owners/SS   the id of the shard's owner, with its lease
//   PREFIX fleet/pins/SS     the address of the owner that an operator chose
//   PREFIX shards/SS/        the shard's EtcdStorage
//
// A coordinator claims a free shard by a put, and hands one over by a put with
// the id and the lease of the next owner. The revision of that put is the
// number of the ownership. Every write of a shard's storage compares it, so an
// owner of before writes nothing; and a coordinator answers nothing when its
// lease may have ended (EtcdLease).
class EtcdFleet final : public Fleet {
 public:
  // `host` outlives the fleet.
  EtcdFleet(std::shared_ptr<EtcdKv> etcd, EtcdFleetOptions options,
            FleetMember self, FleetHost& host);
  // Loses all shards.
  ~EtcdFleet() override;

  // Joins, and starts the thread that calls Step. While etcd does not answer,
  // that thread joins.
  // Errors: those of etcd but UNAVAILABLE, FAILED_PRECONDITION (the fleet has
  //   another format).
  Status Start();

  // Looks at the fleet, and does what there is to do. By one thread.
  // Errors: those of etcd.
  Status Step();

  // The lease; null: none. Used by the thread of Step.
  EtcdLease* lease() { return lease_.get(); }

  FleetView View() const override MUSTER_LOCKS_EXCLUDED(mu_);
  FleetCounts Counts() const override MUSTER_LOCKS_EXCLUDED(mu_);
  std::string FindOwner(int shard) override MUSTER_LOCKS_EXCLUDED(mu_);
  Status Move(int shard, const std::string& address) override
      MUSTER_LOCKS_EXCLUDED(mu_);
  Status CheckReady() const override MUSTER_LOCKS_EXCLUDED(mu_);
  void Leave(std::chrono::milliseconds timeout) override
      MUSTER_LOCKS_EXCLUDED(mu_);

 private:
  class OwnedStorage;

  std::string Key(const char* folder, const std::string& name) const;
  Status Join();
  Status CheckFormat();
  Status PutSelf();
  StatusOr<FleetState> Read();
  void Publish(FleetState state) MUSTER_LOCKS_EXCLUDED(mu_);
  bool IsSettled(const FleetState& state);
  Status Claim(const std::vector<int>& shards);
  void TakeAll(const FleetState& state);
  void Take(int shard, int64_t revision) MUSTER_LOCKS_EXCLUDED(mu_);
  void HandOver(int shard, const std::string& to, const FleetState& state)
      MUSTER_LOCKS_EXCLUDED(mu_);
  void LoseWhatIsGone(const FleetState& state) MUSTER_LOCKS_EXCLUDED(mu_);
  void Resign(const char* cause) MUSTER_LOCKS_EXCLUDED(mu_);
  void Lose(const std::vector<int>& shards, const char* cause)
      MUSTER_LOCKS_EXCLUDED(mu_);
  void ForEach(size_t count, const std::function<void(size_t)>& work) const;
  void Fail(int shard, int64_t revision) MUSTER_LOCKS_EXCLUDED(mu_);
  void Poke() MUSTER_LOCKS_EXCLUDED(mu_);
  void Loop() MUSTER_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<EtcdKv> etcd_;
  const EtcdFleetOptions options_;
  const std::shared_ptr<EtcdTrouble> trouble_;
  const std::shared_ptr<EtcdSpace> space_ = std::make_shared<EtcdSpace>();
  FleetHost& host_;

  // Used by the thread of Step.
  FleetMember self_;
  std::shared_ptr<EtcdLease> lease_;
  // The lease's number. What has the number of an earlier lease of this process
  // is not its own: etcd deletes that when the earlier lease ends.
  std::string id_;
  int64_t earlier_lease_ = 0;         // etcd may still have it; 0: none
  std::vector<std::string> members_;  // their ids since `members_since_`
  std::chrono::nanoseconds members_since_{0};

  mutable Mutex mu_;
  CondVar changed_;
  // The shards that this coordinator serves, and the numbers of these
  // ownerships.
  std::map<int, int64_t> mine_ MUSTER_GUARDED_BY(mu_);
  // Shards whose storage failed.
  std::map<int, int64_t> failed_ MUSTER_GUARDED_BY(mu_);
  // Since when shards are being loaded.
  std::optional<std::chrono::nanoseconds> loading_since_ MUSTER_GUARDED_BY(mu_);
  // A shard that could not be loaded is tried again then.
  std::map<int, std::chrono::nanoseconds> retry_at_ MUSTER_GUARDED_BY(mu_);
  FleetState state_ MUSTER_GUARDED_BY(mu_);
  // The lease, for other threads.
  std::shared_ptr<EtcdLease> joined_ MUSTER_GUARDED_BY(mu_);
  FleetCounts counts_ MUSTER_GUARDED_BY(mu_);
  bool poked_ MUSTER_GUARDED_BY(mu_) = false;
  bool leaving_ MUSTER_GUARDED_BY(mu_) = false;
  bool left_ MUSTER_GUARDED_BY(mu_) = false;
  bool stopping_ MUSTER_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

// Makes the client of etcd, and joins. See EtcdFleet::Start for the errors; and
// INVALID_ARGUMENT (an option).
OpenFleet MakeOpenEtcdFleet(EtcdOptions etcd, EtcdFleetOptions options);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_FLEET_H_
