#ifndef MUSTER_WORKER_LAUNCHER_OWN_COORDINATOR_H_
#define MUSTER_WORKER_LAUNCHER_OWN_COORDINATOR_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "client/groups/embedded_coordinator.h"
#include "worker/launcher/launch_options.h"
#include "worker/launcher/rank_environment.h"

namespace muster::worker {

// The coordinator that this muster-run serves, if it is its part, and sets
// `address` to where the job's coordinator is; null: another one is there. A
// muster-run's coordinator knows no tokens, and speaks TLS only with those who
// show a certificate, where MUSTER_TLS_CA, MUSTER_TLS_CERT and MUSTER_TLS_KEY
// are all in `environment`. What is there for others is taken out of it, and
// out of this process's own.
// Errors: kUnavailable (cannot listen; the text says where and why),
//   kInvalidArgument (a file of those; the text names it).
StatusOr<std::unique_ptr<internal::EmbeddedCoordinator>> ServeOwnCoordinator(
    const LaunchOptions& options, CoordinatorAddress& address,
    Environment& environment);

// Whether `host`, a name or an address, is this one: whether something could
// listen at an address of it.
bool IsThisHost(const std::string& host);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_OWN_COORDINATOR_H_
