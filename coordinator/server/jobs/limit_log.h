#ifndef MUSTER_COORDINATOR_SERVER_JOBS_LIMIT_LOG_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_LIMIT_LOG_H_

#include "absl/strings/string_view.h"
#include "coordinator/core/instant.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// If `status` says that a limit refused a call, logs it: at most one line per
// second, with the number of calls that it stands for. `job` is empty for a
// limit of the coordinator. Thread-safe.
void LogIfLimited(absl::string_view job, const Status& status);

// Writes the pending line if it is due. Call it about once a second.
void TellOfLimits(core::Instant now);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_LIMIT_LOG_H_
