#ifndef MUSTER_WORKER_LAUNCHER_OWN_COORDINATOR_H_
#define MUSTER_WORKER_LAUNCHER_OWN_COORDINATOR_H_

#include <memory>
#include <string>

#include "client/groups/embedded_coordinator.h"
#include "muster/base/status.h"
#include "worker/launcher/launch_options.h"
#include "worker/launcher/rank_environment.h"

namespace muster::worker {

// Starts the coordinator if this muster-run serves it, and sets `address` to
// the job's coordinator. Returns null if another process serves it. A
// muster-run's coordinator uses no tokens. It uses TLS with required client
// certificates if MUSTER_TLS_CA, MUSTER_TLS_CERT and MUSTER_TLS_KEY are all in
// `environment`. Removes variables that are meant for other coordinators from
// `environment` and from this process's environment.
// Errors: kUnavailable (cannot listen; the text says where and why),
//   kInvalidArgument (one of those files is bad; the text names it).
StatusOr<std::unique_ptr<internal::EmbeddedCoordinator>> ServeOwnCoordinator(
    const LaunchOptions& options, CoordinatorAddress& address,
    Environment& environment);

// Whether `host`, a name or an address, is this host: whether a socket can
// listen at one of its addresses.
bool IsThisHost(const std::string& host);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_OWN_COORDINATOR_H_
