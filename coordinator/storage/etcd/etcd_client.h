// A client of etcd.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_CLIENT_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_CLIENT_H_

#include <chrono>
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
  // certificates of it; `cert` and `key` are this client's certificate. Files
  // that are replaced are used for new connections, some seconds later.
  std::string ca = "";
  std::string cert = "";
  std::string key = "";
  // "name:password" for etcd's authentication; empty: none.
  std::string user = "";
  // For one request to one member.
  std::chrono::milliseconds request_timeout{5'000};
};

// Makes a client that calls one member of an etcd cluster, and the next one
// when that does not answer or has no leader. A call tries each member once;
// the first is the one that answered last. Connects with the first call.
// Errors: INVALID_ARGUMENT (an endpoint, a file or a user; the text names the
//   option).
StatusOr<std::unique_ptr<EtcdKv>> MakeEtcdClient(const EtcdOptions& options);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_ETCD_CLIENT_H_
