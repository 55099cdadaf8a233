#include "coordinator/server/limit_log.h"

#include <chrono>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "coordinator/core/instant.h"
#include "coordinator/server/mutex.h"
#include "glog/logging.h"

namespace muster::coordinator {

void LogIfLimited(absl::string_view job, const absl::Status& status) {
  constexpr core::Duration kInterval = std::chrono::seconds(1);
  static Mutex* const mu = new Mutex;
  static core::Instant next;
  static int64_t count = 0;
  if (!absl::IsResourceExhausted(status)) return;
  int64_t counted = 0;
  {
    MutexLock lock(*mu);
    ++count;
    const core::Instant now = std::chrono::steady_clock::now();
    if (now < next) return;
    next = now + kInterval;
    counted = count;
    count = 0;
  }
  LOG(WARNING) << "limit_reached: job=" << (job.empty() ? "-" : job)
               << " calls=" << counted << " cause=\""
               << absl::CHexEscape(status.message()) << "\"";
}

}  // namespace muster::coordinator
