#ifndef MUSTER_TESTS_BENCH_KEYS_STORAGE_H_
#define MUSTER_TESTS_BENCH_KEYS_STORAGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/storage/etcd/etcd.pb.h"
#include "coordinator/storage/etcd/etcd_kv.h"
#include "coordinator/storage/storage.h"

namespace muster::bench {

// The design beside EtcdStorage's log: each key of the storage is a key in
// etcd. A write is a transaction for each 128 keys, so a larger one is not
// whole; a design in use would need a mark for that as well. Only writes.
class KeysStorage final : public coordinator::Storage {
 public:
  // Writes while `owner_key` has the mod revision. `etcd` outlives the storage.
  KeysStorage(coordinator::EtcdKv& etcd, std::string prefix,
              std::string owner_key, int64_t owner_revision)
      : etcd_(etcd),
        prefix_(std::move(prefix)),
        owner_key_(std::move(owner_key)),
        owner_revision_(owner_revision) {}

  Status Load(absl::FunctionRef<Status(absl::string_view, absl::string_view)>)
      override {
    return UnimplementedError("a storage that only writes");
  }

  Status Write(
      const std::vector<coordinator::StorageChange>& changes) override {
    // etcd refuses a transaction that writes a key twice.
    std::map<std::string, const coordinator::StorageChange*> last;
    for (const auto& change : changes) last[change.key] = &change;
    etcdserverpb::TxnRequest request = MakeRequest();
    for (const auto& [key, change] : last) {
      if (change->value.has_value()) {
        auto* put = request.add_success()->mutable_request_put();
        put->set_key(prefix_ + key);
        put->set_value(*change->value);
      } else {
        request.add_success()->mutable_request_delete_range()->set_key(prefix_ +
                                                                       key);
      }
      if (request.success_size() < kOpsMax) continue;
      Status status = Send(request);
      if (!status.ok()) return status;
      request = MakeRequest();
    }
    return request.success_size() == 0 ? OkStatus() : Send(request);
  }

  Status ErasePrefix(absl::string_view) override {
    return UnimplementedError("a storage that only writes");
  }
  Status Sync() override { return OkStatus(); }

 private:
  static constexpr int kOpsMax = 128;

  etcdserverpb::TxnRequest MakeRequest() const {
    etcdserverpb::TxnRequest request;
    auto* owner = request.add_compare();
    owner->set_target(etcdserverpb::Compare::MOD);
    owner->set_key(owner_key_);
    owner->set_mod_revision(owner_revision_);
    return request;
  }

  Status Send(const etcdserverpb::TxnRequest& request) {
    etcdserverpb::TxnResponse response;
    Status status = etcd_.Txn(request, response);
    if (status.ok() && !response.succeeded()) return AbortedError("not owned");
    return status;
  }

  coordinator::EtcdKv& etcd_;
  const std::string prefix_;
  const std::string owner_key_;
  const int64_t owner_revision_;
};

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_KEYS_STORAGE_H_
