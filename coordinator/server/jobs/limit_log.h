#ifndef MUSTER_COORDINATOR_SERVER_JOBS_LIMIT_LOG_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_LIMIT_LOG_H_

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "coordinator/core/instant.h"

namespace muster::coordinator {

// Logs that a call was refused by a limit, when `status` says so; at most one
// line a second, which counts those that it stands for. `job` is empty where
// the limit is the coordinator's. Thread-safe.
void LogIfLimited(absl::string_view job, const Status& status);

// Writes that line when it is time for it. Call it about once a second.
void TellOfLimits(core::Instant now);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_LIMIT_LOG_H_
