#ifndef MUSTER_WORKER_LAUNCH_OPTIONS_H_
#define MUSTER_WORKER_LAUNCH_OPTIONS_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::worker {

using Environment = std::map<std::string, std::string>;

// What muster-run was asked to do.
struct LaunchOptions {
  // Only print LaunchHelpText(), or the version; nothing else is set then.
  bool help = false;
  bool version = false;

  // Hosts of the job, and which of them this is.
  int nnodes = 1;
  int node_rank = 0;
  // Ranks on this host, the same number on every host.
  int nproc_per_node = 1;

  // Where an external coordinator listens. Without a host, muster-run serves
  // one itself.
  std::string rendezvous_host;
  int rendezvous_port = 0;
  // The job's name on the coordinator. Empty: muster-run makes one up.
  std::string rendezvous_id;

  std::string role;
  // Folder for a copy of every rank's output; empty for none.
  std::string log_dir;
  // After a rank failed, how long the others may take to end by themselves.
  std::chrono::milliseconds failure_grace{0};
  // Between SIGTERM and SIGKILL.
  std::chrono::milliseconds stop_grace{0};

  // The program and its arguments.
  std::vector<std::string> command;

  int world_size() const { return nnodes * nproc_per_node; }
};

// Reads the options of muster-run. `arguments` is argv without argv[0]; the
// first one that is no option, or the one after "--", begins the command.
// Options may be spelt with dashes or underscores, with one leading dash or
// two, and their value follows after "=" or as the next argument. A value that
// is not there comes from `environment`: MUSTER_<OPTION>, else PET_<OPTION>.
// Errors: INVALID_ARGUMENT; the text names the option (or variable) and its
//   value.
absl::StatusOr<LaunchOptions> ParseLaunchOptions(
    const std::vector<std::string>& arguments, const Environment& environment);

// Every option with its meaning, unit and default; exit statuses.
std::string LaunchHelpText();

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCH_OPTIONS_H_
