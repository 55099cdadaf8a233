#ifndef MUSTER_WORKER_LAUNCHER_H_
#define MUSTER_WORKER_LAUNCHER_H_

#include "worker/launch_options.h"
#include "worker/process.h"
#include "worker/rank_environment.h"

namespace muster::worker {

// Runs the ranks of this host to their end and returns muster-run's exit
// status. Call it on the thread that made `group`, with SIGINT, SIGTERM,
// SIGHUP, SIGQUIT and SIGCHLD blocked in every thread. Prints the ranks' lines
// and its own summary.
int Launch(const LaunchOptions& options, const CoordinatorAddress& coordinator,
           const Environment& environment, ProcessGroup& group);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_H_
