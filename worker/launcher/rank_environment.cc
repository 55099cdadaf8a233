#include "worker/launcher/rank_environment.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "client/control/endpoint.h"
#include "client/control/relay_route.h"

namespace muster::worker {

std::string CoordinatorAddress::HostPort() const {
  std::vector<base::Endpoint> all = {{host, port}};
  all.insert(all.end(), others.begin(), others.end());
  return internal::JoinEndpoints(all);
}

int64_t NewAttempt() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Environment RankEnvironment(const LaunchOptions& options,
                            const Assignment& assignment,
                            const CoordinatorAddress& coordinator,
                            int local_rank, const std::string& error_file,
                            Environment inherited) {
  Environment& env = inherited;
  env["RANK"] = absl::StrCat(assignment.first_rank + local_rank);
  env["LOCAL_RANK"] = absl::StrCat(local_rank);
  env["WORLD_SIZE"] = absl::StrCat(assignment.world_size);
  env["LOCAL_WORLD_SIZE"] = absl::StrCat(options.nproc_per_node);
  env["GROUP_RANK"] = absl::StrCat(assignment.group_rank);
  env["GROUP_WORLD_SIZE"] = absl::StrCat(assignment.group_world_size);
  env["ROLE_NAME"] = options.role;
  env["ROLE_RANK"] = env["RANK"];
  env["ROLE_WORLD_SIZE"] = env["WORLD_SIZE"];
  env["MASTER_ADDR"] = coordinator.host;
  env["MASTER_PORT"] = absl::StrCat(coordinator.port);
  // The SDK's env:// reads the others from it.
  if (!coordinator.others.empty()) {
    env["MUSTER_COORDINATOR"] = coordinator.HostPort();
  }
  env["TORCHELASTIC_RUN_ID"] = coordinator.job;
  // Otherwise rank 0 would serve a coordinator of its own.
  env["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  env["TORCHELASTIC_RESTART_COUNT"] = absl::StrCat(assignment.restarts);
  env["TORCHELASTIC_MAX_RESTARTS"] = absl::StrCat(assignment.max_restarts);
  env["MUSTER_ATTEMPT"] = absl::StrCat(assignment.attempt);
  env[kErrorFileVariable] = error_file;
  // A relay of a muster-run around this one is not for these ranks.
  env.erase(internal::kRelayVariable);
  if (!coordinator.relay.empty()) {
    env[internal::kRelayVariable] = coordinator.relay;
  }
  // It would take precedence over the run's job name.
  env.erase("MUSTER_JOB");
  // Otherwise each rank would have a thread per core.
  if (options.nproc_per_node > 1) env.try_emplace("OMP_NUM_THREADS", "1");
  if (options.metrics_port_base > 0) {
    env["MUSTER_HTTP_PORT"] =
        absl::StrCat(options.metrics_port_base + local_rank);
  }
  env.try_emplace("MUSTER_HTTP_PORT", "0");
  return inherited;
}

}  // namespace muster::worker
