#include "coordinator/storage/etcd/open_etcd.h"

#include <utility>
#include <vector>

#include "base/text.h"
#include "coordinator/storage/etcd/etcd_lease.h"
#include "coordinator/storage/etcd/etcd_storage.h"
#include "glog/logging.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {
namespace {

constexpr std::chrono::milliseconds kRetryInterval{50};
// The same trouble is in the log this often.
constexpr std::chrono::seconds kLogInterval{10};

// The client, the lease and the storage, which end in the other order.
class OwnedStorage final : public Storage {
 public:
  OwnedStorage(std::unique_ptr<EtcdClient> client,
               std::unique_ptr<EtcdLease> lease, const std::string& prefix)
      : client_(std::move(client)),
        lease_(std::move(lease)),
        storage_(*client_, StorageOptions(prefix)) {}

  Status Load(
      absl::FunctionRef<Status(absl::string_view key, absl::string_view value)>
          entry) override {
    return storage_.Load(entry);
  }
  Status Write(const std::vector<StorageChange>& changes) override {
    return storage_.Write(changes);
  }
  Status ErasePrefix(absl::string_view prefix) override {
    return storage_.ErasePrefix(prefix);
  }
  Status Sync() override { return storage_.Sync(); }
  bool owned() const override { return lease_->valid(); }

 private:
  EtcdStorageOptions StorageOptions(const std::string& prefix) {
    EtcdStorageOptions options;
    options.prefix = prefix;
    options.owner_key = lease_->key();
    options.owner_revision = lease_->revision();
    options.try_again = [this](const Status& status) {
      return TryAgain(status);
    };
    return options;
  }

  bool TryAgain(const Status& status) MUSTER_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto now = std::chrono::steady_clock::now();
    if (now >= log_at_) {
      LOG(WARNING) << "storage_waits: cause=" << base::Quote(status.message());
      log_at_ = now + kLogInterval;
    }
    never_.WaitUntil(mu_, now + kRetryInterval);
    return lease_->valid();
  }

  const std::unique_ptr<EtcdClient> client_;
  const std::unique_ptr<EtcdLease> lease_;
  Mutex mu_;
  CondVar never_;
  std::chrono::steady_clock::time_point log_at_ MUSTER_GUARDED_BY(mu_);
  EtcdStorage storage_;
};

}  // namespace

StatusOr<std::unique_ptr<Storage>> OpenEtcd(const OpenEtcdOptions& options) {
  StatusOr<std::unique_ptr<EtcdClient>> client = EtcdClient::Make(options.etcd);
  if (!client.ok()) return client.status();
  EtcdLeaseOptions lease_options;
  lease_options.key = options.prefix + "owner";
  lease_options.value = options.owner;
  lease_options.ttl = options.lease;
  lease_options.on_lost = options.on_lost;
  StatusOr<std::unique_ptr<EtcdLease>> lease = EtcdLease::Acquire(
      **client, std::move(lease_options),
      [&](const std::string& owner) {
        LOG(INFO) << "stands_by: owner=" << base::Quote(owner);
      },
      options.stop);
  if (!lease.ok()) return lease.status();
  LOG(INFO) << "owns_storage: revision=" << (*lease)->revision();
  return std::unique_ptr<Storage>(std::make_unique<OwnedStorage>(
      *std::move(client), *std::move(lease), options.prefix));
}

}  // namespace muster::coordinator
