#ifndef MUSTER_WORKER_LAUNCHER_RANK_ENVIRONMENT_H_
#define MUSTER_WORKER_LAUNCHER_RANK_ENVIRONMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "worker/launcher/launch_options.h"

namespace muster::worker {

// The variable that names the file in which a rank describes its failure.
inline constexpr char kErrorFileVariable[] = "TORCHELASTIC_ERROR_FILE";

// The address of the coordinator, for the ranks.
struct CoordinatorAddress {
  std::string host;
  int port = 0;
  std::string job;
  // The other coordinators that may have the job.
  std::vector<base::Endpoint> others = {};
  // The value of MUSTER_HOST_RELAY; empty: the ranks connect by themselves.
  std::string relay{};

  // host:port, an IPv6 host in brackets; with `others` a list with commas.
  std::string HostPort() const;
};

// The hosts' agreement on an attempt. All fields except the first two are the
// same on all hosts.
struct Assignment {
  int group_rank = 0;  // this host's number
  int first_rank = 0;  // the first of this host's ranks
  int group_world_size = 1;
  int world_size = 1;
  // How often the job's ranks were restarted after a failure.
  int restarts = 0;
  // How often they may be restarted.
  int max_restarts = 0;
  // Identifies this attempt among all attempts, also of earlier runs of the
  // job: its start in milliseconds since 1970.
  int64_t attempt = 1;
  // The number of this run among runs of the same name in the --log-dir folders
  // (log_runs.h).
  int log_run = 1;
};

// Returns Assignment::attempt for an attempt that begins now.
int64_t NewAttempt();

// Returns the environment of local rank `local_rank`: `inherited` and
// torchrun's variables. `error_file` is the value of kErrorFileVariable.
Environment RankEnvironment(const LaunchOptions& options,
                            const Assignment& assignment,
                            const CoordinatorAddress& coordinator,
                            int local_rank, const std::string& error_file,
                            Environment inherited);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_RANK_ENVIRONMENT_H_
