#include "worker/rank_environment.h"

#include "absl/strings/str_cat.h"

namespace muster::worker {

Environment RankEnvironment(const LaunchOptions& options,
                            const CoordinatorAddress& coordinator,
                            int local_rank, Environment inherited) {
  Environment& env = inherited;
  // Every host starts the same number of ranks, so ranks follow from it.
  const int rank = options.node_rank * options.nproc_per_node + local_rank;
  env["RANK"] = absl::StrCat(rank);
  env["LOCAL_RANK"] = absl::StrCat(local_rank);
  env["WORLD_SIZE"] = absl::StrCat(options.world_size());
  env["LOCAL_WORLD_SIZE"] = absl::StrCat(options.nproc_per_node);
  env["GROUP_RANK"] = absl::StrCat(options.node_rank);
  env["GROUP_WORLD_SIZE"] = absl::StrCat(options.nnodes);
  env["ROLE_NAME"] = options.role;
  env["ROLE_RANK"] = env["RANK"];
  env["ROLE_WORLD_SIZE"] = env["WORLD_SIZE"];
  env["MASTER_ADDR"] = coordinator.host;
  env["MASTER_PORT"] = absl::StrCat(coordinator.port);
  env["TORCHELASTIC_RUN_ID"] = coordinator.job;
  // Rank 0 must not serve a coordinator of its own.
  env["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  env["TORCHELASTIC_RESTART_COUNT"] = "0";
  env["TORCHELASTIC_MAX_RESTARTS"] = "0";
  // A job name from outside would take precedence over the run's.
  env.erase("MUSTER_JOB");
  // Several ranks with a thread per core each would get in each other's way.
  if (options.nproc_per_node > 1) env.try_emplace("OMP_NUM_THREADS", "1");
  env.try_emplace("MUSTER_HTTP_PORT", "0");
  return inherited;
}

}  // namespace muster::worker
