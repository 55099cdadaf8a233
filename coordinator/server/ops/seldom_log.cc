#include "coordinator/server/ops/seldom_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace muster::coordinator {

void SeldomLog::Add(absl::string_view detail, core::Instant now) {
  const std::string line = LineFor(detail, now);
  if (!line.empty()) LOG(WARNING) << line;
}

void SeldomLog::Tell(core::Instant now) {
  const std::string line = LineAt(now);
  if (!line.empty()) LOG(WARNING) << line;
}

std::string SeldomLog::LineFor(absl::string_view detail, core::Instant now) {
  {
    MutexLock lock(mu_);
    ++untold_;
    last_ = std::string(detail);
  }
  return LineAt(now);
}

std::string SeldomLog::LineAt(core::Instant now) {
  MutexLock lock(mu_);
  if (untold_ == 0 || now < next_) return "";
  next_ = now + interval_;
  return absl::StrCat(event_, ": count=", std::exchange(untold_, 0), " ",
                      last_);
}

}  // namespace muster::coordinator
