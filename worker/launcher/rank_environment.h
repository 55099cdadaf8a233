#ifndef MUSTER_WORKER_LAUNCHER_RANK_ENVIRONMENT_H_
#define MUSTER_WORKER_LAUNCHER_RANK_ENVIRONMENT_H_

#include <cstdint>
#include <string>

#include "worker/launcher/launch_options.h"

namespace muster::worker {

// The variable that names the file in which a rank describes its failure.
inline constexpr char kErrorFileVariable[] = "TORCHELASTIC_ERROR_FILE";

// The address of the coordinator, for the ranks.
struct CoordinatorAddress {
  std::string host;
  int port = 0;
  std::string job;

  // host:port, an IPv6 host in brackets.
  std::string HostPort() const;
};

// The hosts' agreement on an attempt. All fields but the first two are the same
// on all hosts.
struct Assignment {
  int group_rank = 0;  // which host this is
  int first_rank = 0;  // of this host's ranks
  int group_world_size = 1;
  int world_size = 1;
  // How often the job's ranks were started again after a failure.
  int restarts = 0;
  // How often they may be.
  int max_restarts = 0;
  // Tells this attempt from those before, of earlier runs of the job, too: the
  // milliseconds since 1970 at which it began.
  int64_t attempt = 1;
  // Which run of its name this is, in the --log-dir of any host (log_runs.h).
  int log_run = 1;
};

// Assignment::attempt of one that begins now.
int64_t NewAttempt();

// The environment of the rank `local_rank` of this host: `inherited`, with
// torchrun's variables set. `error_file` is for kErrorFileVariable.
Environment RankEnvironment(const LaunchOptions& options,
                            const Assignment& assignment,
                            const CoordinatorAddress& coordinator,
                            int local_rank, const std::string& error_file,
                            Environment inherited);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_RANK_ENVIRONMENT_H_
