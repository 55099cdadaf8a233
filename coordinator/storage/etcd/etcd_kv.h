// The interface to etcd.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_KV_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_KV_H_

#include <chrono>
#include <cstdint>

#include "muster/base/status.h"

namespace etcdserverpb {
class CompactionRequest;
class CompactionResponse;
class RangeRequest;
class RangeResponse;
class TxnRequest;
class TxnResponse;
}  // namespace etcdserverpb

namespace muster::coordinator {

// EtcdKv is etcd's services KV and Lease (etcd.proto). A request may be sent
// more than once: a transaction must be written so that its second run does no
// harm. Thread-safe.
// Errors: UNAVAILABLE (etcd did not answer in time, or has no leader: whether
//   the request was applied is unknown), RESOURCE_EXHAUSTED (etcd's database
//   has reached its quota), OUT_OF_RANGE (the revision is compacted), NOT_FOUND
//   (the lease of a put has ended), and the others of etcd.
class EtcdKv {
 public:
  virtual ~EtcdKv() = default;

  virtual Status Range(const etcdserverpb::RangeRequest& request,
                       etcdserverpb::RangeResponse& response) = 0;
  virtual Status Txn(const etcdserverpb::TxnRequest& request,
                     etcdserverpb::TxnResponse& response) = 0;
  virtual Status Compact(const etcdserverpb::CompactionRequest& request,
                         etcdserverpb::CompactionResponse& response) = 0;

  // Begins a lease; the result is its number, which is not 0. If an answer was
  // lost, there may be one more, which ends by itself.
  virtual StatusOr<int64_t> GrantLease(std::chrono::seconds ttl) = 0;
  // Begins the lease's time anew. Each member of etcd has `member_timeout` to
  // answer: with a fifth of the lease's time, all of three can be tried before
  // it ends.
  // Errors: also NOT_FOUND (the lease has ended).
  virtual Status KeepLeaseAlive(int64_t lease,
                                std::chrono::milliseconds member_timeout) = 0;
  // Ends the lease: its keys are deleted.
  // Errors: also NOT_FOUND (it has ended).
  virtual Status RevokeLease(int64_t lease) = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_KV_H_
