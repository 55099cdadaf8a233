#include "coordinator/storage/etcd/etcd_lease.h"

#include <utility>

#include "coordinator/storage/etcd/etcd.pb.h"

namespace muster::coordinator {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPollInterval{100};

}  // namespace

EtcdLease::EtcdLease(EtcdClient& client, EtcdLeaseOptions options)
    : client_(client), options_(std::move(options)) {}

StatusOr<std::unique_ptr<EtcdLease>> EtcdLease::Acquire(
    EtcdClient& client, EtcdLeaseOptions options,
    const std::function<void(const std::string& owner)>& waiting,
    const std::function<bool()>& stop) {
  std::unique_ptr<EtcdLease> lease(new EtcdLease(client, std::move(options)));
  std::string told;
  while (!stop()) {
    std::string owner;
    const StatusOr<bool> taken = lease->TryTake(&owner);
    if (taken.ok() && *taken) {
      lease->renewals_ = std::thread([raw = lease.get()] { raw->RenewLoop(); });
      return lease;
    }
    if (!taken.ok() && !IsUnavailable(taken.status())) return taken.status();
    if (taken.ok() && owner != told) {
      told = owner;
      waiting(owner);
    }
    MutexLock lock(lease->mu_);
    lease->stops_.WaitUntil(lease->mu_, steady_clock::now() + kPollInterval);
  }
  return CancelledError("etcd: the wait for " + lease->options_.key +
                        " was ended");
}

EtcdLease::~EtcdLease() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  stops_.NotifyAll();
  if (renewals_.joinable()) renewals_.join();
  valid_until_ = 0;
  if (lease_ != 0) client_.RevokeLease(lease_).IgnoreError();
}

// A lease that was not used for a while has ended: then this grants another.
StatusOr<bool> EtcdLease::TryTake(std::string* owner) {
  etcdserverpb::TxnRequest request;
  auto* absent = request.add_compare();
  absent->set_target(etcdserverpb::Compare::VERSION);
  absent->set_key(options_.key);
  absent->set_version(0);
  request.add_failure()->mutable_request_range()->set_key(options_.key);
  auto* put = request.add_success()->mutable_request_put();

  // Most of the time another process has the key, which needs no lease.
  etcdserverpb::RangeRequest look;
  look.set_key(options_.key);
  etcdserverpb::RangeResponse found;
  Status status = client_.Range(look, found);
  if (!status.ok()) return status;
  if (found.kvs_size() > 0 && found.kvs(0).lease() != lease_) {
    *owner = found.kvs(0).value();
    return false;
  }

  const auto sent = steady_clock::now();
  if (lease_ == 0 || !client_.KeepLeaseAlive(lease_).ok()) {
    const StatusOr<int64_t> granted = client_.GrantLease(options_.ttl.count());
    if (!granted.ok()) return granted.status();
    lease_ = *granted;
  }
  put->set_key(options_.key);
  put->set_value(options_.value);
  put->set_lease(lease_);
  etcdserverpb::TxnResponse response;
  status = client_.Txn(request, response);
  if (IsNotFound(status)) {
    lease_ = 0;
    return UnavailableError(status.message());
  }
  if (!status.ok()) return status;
  if (response.succeeded()) {
    revision_ = response.header().revision();
    Extend(sent);
    return true;
  }
  const auto& range = response.responses(0).response_range();
  if (range.kvs_size() == 0) return false;
  const auto& key = range.kvs(0);
  // An answer to an earlier try may have been lost.
  if (key.lease() != lease_) {
    *owner = key.value();
    return false;
  }
  revision_ = key.create_revision();
  Extend(sent);
  return true;
}

void EtcdLease::Extend(steady_clock::time_point sent) {
  const steady_clock::duration ttl = options_.ttl;
  valid_until_.store((sent + ttl - ttl / 10).time_since_epoch().count(),
                     std::memory_order_release);
}

void EtcdLease::RenewLoop() {
  const steady_clock::duration ttl = options_.ttl;
  auto next = steady_clock::now() + ttl / 3;
  while (true) {
    {
      MutexLock lock(mu_);
      while (!stopping_ && steady_clock::now() < next) {
        stops_.WaitUntil(mu_, next);
      }
      if (stopping_) return;
    }
    const auto sent = steady_clock::now();
    const Status status = client_.KeepLeaseAlive(lease_);
    if (status.ok()) {
      Extend(sent);
      next = sent + ttl / 3;
      continue;
    }
    if (IsNotFound(status) || !valid()) {
      valid_until_ = 0;
      if (options_.on_lost != nullptr) options_.on_lost(status);
      return;
    }
    next = steady_clock::now() + kPollInterval;
  }
}

}  // namespace muster::coordinator
