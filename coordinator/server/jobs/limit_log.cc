#include "coordinator/server/jobs/limit_log.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/server/ops/seldom_log.h"

namespace muster::coordinator {
namespace {

SeldomLog& Limited() {
  static auto* const log =
      new SeldomLog("limit_reached", std::chrono::seconds(1));
  return *log;
}

}  // namespace

void LogIfLimited(absl::string_view job, const Status& status) {
  if (!IsResourceExhausted(status)) return;
  Limited().Add(absl::StrCat("job=", job.empty() ? "-" : base::LogValue(job),
                             " cause=", base::Quote(status.message())),
                std::chrono::steady_clock::now());
}

void TellOfLimits(core::Instant now) { Limited().Tell(now); }

}  // namespace muster::coordinator
