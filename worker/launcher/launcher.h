#ifndef MUSTER_WORKER_LAUNCHER_LAUNCHER_H_
#define MUSTER_WORKER_LAUNCHER_LAUNCHER_H_

#include "worker/launcher/launch_options.h"
#include "worker/launcher/rank_environment.h"
#include "worker/launcher/signal_plan.h"

namespace muster::worker {

// Runs the ranks of this host, attempt after attempt, to the end of the job,
// and returns muster-run's exit status. With several hosts it meets the others
// before each attempt (Hosts). Call it on the main thread, with SIGCHLD and the
// signals that `signals` reads blocked in every thread. Prints the ranks'
// output and its own messages.
int Launch(const LaunchOptions& options, const SignalPlan& signals,
           const CoordinatorAddress& coordinator,
           const Environment& environment);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_LAUNCHER_H_
