// Opens a storage in etcd that one process at a time owns.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_OPEN_ETCD_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_OPEN_ETCD_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/storage/etcd/etcd_client.h"
#include "coordinator/storage/storage.h"
#include "muster/base/status.h"

namespace muster::coordinator {

struct OpenEtcdOptions {
  EtcdOptions etcd;
  // All keys of muster begin with it.
  std::string prefix = "/muster/";
  // How others call this process, while it owns the storage.
  std::string owner;
  // The storage is free so long after its owner has died.
  std::chrono::seconds lease{5};
  // Ends the wait for the storage. Asked about ten times a second.
  std::function<bool()> stop;
  // Called once, on some thread, when the ownership is lost: another process
  // may have the storage. This one should end.
  std::function<void(const Status&)> on_lost;
};

// Waits until this process owns the storage. While another process does, that
// is in the log. Requests that fail because etcd is out of reach, has no leader
// or has no space are tried again, as long as this process is the owner.
// Errors: INVALID_ARGUMENT (an option), CANCELLED (`stop`), and etcd's errors
//   but UNAVAILABLE.
StatusOr<std::unique_ptr<Storage>> OpenEtcd(const OpenEtcdOptions& options);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_OPEN_ETCD_H_
