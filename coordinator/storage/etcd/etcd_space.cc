#include "coordinator/storage/etcd/etcd_space.h"

#include "absl/strings/str_cat.h"

namespace muster::coordinator {
namespace {

using std::chrono::steady_clock;

// etcd elects a leader in less.
constexpr std::chrono::seconds kPatience{3};

}  // namespace

EtcdSpace::Request::~Request() {
  if (!since_.has_value()) return;
  MutexLock lock(space_.mu_);
  space_.failed_.erase(this);
  space_.count_ = static_cast<int64_t>(space_.failed_.size());
}

void EtcdSpace::Request::Failed(const Status& status) {
  MutexLock lock(space_.mu_);
  if (!since_.has_value()) since_ = steady_clock::now();
  status_ = status;
  space_.failed_.insert(this);
  space_.count_ = static_cast<int64_t>(space_.failed_.size());
}

Status EtcdSpace::Check() const {
  if (count_.load(std::memory_order_relaxed) == 0) return OkStatus();
  MutexLock lock(mu_);
  Status health;
  const auto now = steady_clock::now();
  for (const Request* request : failed_) {
    if (IsResourceExhausted(request->status_)) {
      return ResourceExhaustedError(
          absl::StrCat("etcd has no space: ", request->status_.message()));
    }
    if (now - *request->since_ > kPatience) {
      health = UnavailableError(
          absl::StrCat("etcd does not answer: ", request->status_.message()));
    }
  }
  return health;
}

bool EtcdSpace::TakeCompaction() {
  MutexLock lock(mu_);
  const auto now = steady_clock::now();
  if (compacted_.has_value() && now - *compacted_ < compaction_interval_) {
    return false;
  }
  compacted_ = now;
  return true;
}

}  // namespace muster::coordinator
