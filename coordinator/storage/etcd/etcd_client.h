// A client of etcd.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_CLIENT_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/storage/etcd/etcd_kv.h"
#include "muster/base/status.h"

namespace muster::coordinator {

struct EtcdOptions {
  // "host:port" of etcd's members; at least one.
  std::vector<std::string> endpoints;
  // PEM files. With `ca` connections speak TLS and the members must have
  // certificates of it; `cert` and `key` are this client's certificate.
  std::string ca = "";
  std::string cert = "";
  std::string key = "";
  // "name:password" for etcd's authentication; empty: none.
  std::string user = "";
  // For one request to one member.
  std::chrono::milliseconds request_timeout{5'000};
};

// EtcdClient calls one member of an etcd cluster, and the next one when that
// does not answer or has no leader.
class EtcdClient : public EtcdKv {
 public:
  // Connects with the first request. Errors: INVALID_ARGUMENT (an endpoint, a
  //   file or a user; the text names the option).
  static StatusOr<std::unique_ptr<EtcdClient>> Make(const EtcdOptions& options);

  // Each tries every member once; request_timeout is for each of them.
  Status Range(const etcdserverpb::RangeRequest& request,
               etcdserverpb::RangeResponse& response) override = 0;
  Status Txn(const etcdserverpb::TxnRequest& request,
             etcdserverpb::TxnResponse& response) override = 0;
  Status Compact(const etcdserverpb::CompactionRequest& request,
                 etcdserverpb::CompactionResponse& response) override = 0;

  // A lease of `ttl` seconds; the result is its number.
  virtual StatusOr<int64_t> GrantLease(int64_t ttl) = 0;
  // Begins the lease's time anew. Errors: NOT_FOUND (it has ended).
  virtual Status KeepLeaseAlive(int64_t lease) = 0;
  // Ends the lease: its keys are deleted.
  virtual Status RevokeLease(int64_t lease) = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_CLIENT_H_
