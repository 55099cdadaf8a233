// The interface to etcd's key-value store.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_KV_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_KV_H_

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

// EtcdKv is etcd's KV service (etcd.proto). A request may be sent more than
// once: a transaction must be written so that its second run does no harm.
// Thread-safe.
// Errors: UNAVAILABLE (etcd did not answer in time, or has no leader: whether
//   the request was applied is unknown), RESOURCE_EXHAUSTED (etcd's database
//   has reached its quota), OUT_OF_RANGE (the revision is compacted), and the
//   others of etcd.
class EtcdKv {
 public:
  virtual ~EtcdKv() = default;

  virtual Status Range(const etcdserverpb::RangeRequest& request,
                       etcdserverpb::RangeResponse& response) = 0;
  virtual Status Txn(const etcdserverpb::TxnRequest& request,
                     etcdserverpb::TxnResponse& response) = 0;
  virtual Status Compact(const etcdserverpb::CompactionRequest& request,
                         etcdserverpb::CompactionResponse& response) = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_KV_H_
