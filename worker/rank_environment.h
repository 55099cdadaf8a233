#ifndef MUSTER_WORKER_RANK_ENVIRONMENT_H_
#define MUSTER_WORKER_RANK_ENVIRONMENT_H_

#include <string>

#include "worker/launch_options.h"

namespace muster::worker {

// Where the ranks find the coordinator.
struct CoordinatorAddress {
  std::string host;
  int port = 0;
  std::string job;
};

// The environment of the rank `local_rank` of this host: `inherited`, with
// torchrun's variables set.
Environment RankEnvironment(const LaunchOptions& options,
                            const CoordinatorAddress& coordinator,
                            int local_rank, Environment inherited);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_RANK_ENVIRONMENT_H_
