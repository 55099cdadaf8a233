#include "coordinator/storage/etcd/etcd_lease.h"

#include <time.h>

#include <utility>

namespace muster::coordinator {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetryInterval{100};

}  // namespace

nanoseconds BootTime() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
}

EtcdLease::EtcdLease(EtcdKv& etcd, EtcdLeaseOptions options)
    : etcd_(etcd), options_(std::move(options)) {}

StatusOr<std::shared_ptr<EtcdLease>> EtcdLease::Grant(
    EtcdKv& etcd, EtcdLeaseOptions options) {
  std::shared_ptr<EtcdLease> lease(new EtcdLease(etcd, std::move(options)));
  const nanoseconds sent = lease->options_.clock();
  const StatusOr<int64_t> id = etcd.GrantLease(lease->options_.ttl);
  if (!id.ok()) return id.status();
  lease->id_ = *id;
  lease->valid_until_ = lease->ValidUntil(sent);
  if (lease->options_.has_thread) {
    lease->renewals_ = std::thread([raw = lease.get()] { raw->RenewLoop(); });
  }
  return lease;
}

EtcdLease::~EtcdLease() { End(); }

void EtcdLease::End() {
  {
    MutexLock lock(mu_);
    if (std::exchange(stopping_, true)) return;
  }
  stops_.NotifyAll();
  if (renewals_.joinable()) renewals_.join();
  // One that has ended here ends in etcd by itself.
  const bool ended = !valid();
  valid_until_ = 0;
  if (id_ != 0 && !ended) etcd_.RevokeLease(id_).IgnoreError();
}

int64_t EtcdLease::ValidUntil(nanoseconds sent) const {
  const nanoseconds ttl = options_.ttl;
  return (sent + ttl - ttl / 10).count();
}

Status EtcdLease::Renew() {
  const nanoseconds sent = options_.clock();
  const Status status = etcd_.KeepLeaseAlive(
      id_,
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.ttl) / 5);
  if (status.ok()) {
    int64_t before = valid_until_;
    while (before != 0 &&
           !valid_until_.compare_exchange_weak(before, ValidUntil(sent))) {
    }
  }
  if (IsNotFound(status)) valid_until_ = 0;
  return status;
}

void EtcdLease::RenewLoop() {
  const nanoseconds interval = nanoseconds(options_.ttl) / 3;
  auto next = steady_clock::now() + interval;
  while (true) {
    {
      MutexLock lock(mu_);
      while (!stopping_ && steady_clock::now() < next) {
        stops_.WaitUntil(mu_, next);
      }
      if (stopping_) return;
    }
    const auto sent = steady_clock::now();
    const Status status = Renew();
    if (!valid()) {
      options_.on_end();
      return;
    }
    next = status.ok() ? sent + interval : steady_clock::now() + kRetryInterval;
  }
}

}  // namespace muster::coordinator
