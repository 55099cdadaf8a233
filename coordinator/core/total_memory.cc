#include "coordinator/core/total_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {
namespace {

constexpr int64_t kSharesMin = 16;
// A job that holds no more than the shared half divided by this takes no share.
constexpr int64_t kLittle = 1000;

}  // namespace

int64_t TotalMemory::share() const {
  const int64_t jobs = sharing_jobs_.load(std::memory_order_relaxed);
  return limit_ / 2 / std::max(kSharesMin, jobs);
}

MemoryShare::MemoryShare(TotalMemory* total) : total_(total) {}

MemoryShare::~MemoryShare() { Add(-held_); }

Status MemoryShare::Check(int64_t more, const Offer& offer) const {
  if (total_ == nullptr || more <= 0) return OkStatus();
  const int64_t all = total_->held() + more;
  if (all <= total_->limit_ / 2) return OkStatus();
  const int64_t share = total_->share();
  if (all <= total_->limit_ && held_ + more <= share) return OkStatus();
  return LimitError("total_bytes", total_->limit_, all, offer,
                    absl::StrCat(" by a job that holds ", held_,
                                 ", and whose share is ", share));
}

int64_t MemoryShare::share() const {
  return total_ == nullptr ? INT64_MAX : total_->share();
}

void MemoryShare::Add(int64_t more) {
  held_ += more;
  if (total_ == nullptr) return;
  total_->held_ += more;
  const bool shares = held_ > total_->limit_ / 2 / kLittle;
  if (shares == shares_) return;
  shares_ = shares;
  total_->sharing_jobs_ += shares ? 1 : -1;
}

Status MemoryHeld::Check(int64_t bytes, const Offer& offer) const {
  if (share_ == nullptr) return OkStatus();
  return share_->Check(bytes - bytes_, offer);
}

void MemoryHeld::Set(int64_t bytes) {
  if (bytes == bytes_) return;
  if (share_ != nullptr) share_->Add(bytes - bytes_);
  bytes_ = bytes;
}

Status CheckMemory(const Limits& limits, int64_t more, const Offer& offer) {
  if (limits.memory == nullptr) return OkStatus();
  return limits.memory->Check(more, offer);
}

}  // namespace muster::coordinator::core
