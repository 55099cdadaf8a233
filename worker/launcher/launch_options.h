#ifndef MUSTER_WORKER_LAUNCHER_LAUNCH_OPTIONS_H_
#define MUSTER_WORKER_LAUNCHER_LAUNCH_OPTIONS_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/endpoint.h"
#include "base/options.h"
#include "muster/base/status.h"

namespace muster::worker {

using base::Environment;

// All parsers here return INVALID_ARGUMENT with a text that begins with
// `option` and has the value.

// The number of hosts of a job: `2`, or `1:4` for 1 to 4.
struct NodeCount {
  int min = 1;
  int max = 1;
};
StatusOr<NodeCount> ParseNodeCount(absl::string_view option,
                                   absl::string_view value);

// The processors and GPUs of a host.
struct Devices {
  int cpus = 1;  // CPUs that this process may use (UsableProcessors)
  int gpus = 0;
};
// Returns those of this host; GPUs as in GpuNodes.
Devices DevicesOfHost(const Environment& environment);

// Parses `4`, `cpu` (one rank for each), `gpu` (one for each; no GPU is an
// error), `auto` (`gpu` if there are any, else `cpu`).
StatusOr<int> ParseNproc(absl::string_view option, absl::string_view value,
                         const Devices& devices);

// Selects standard output, standard error, or both, of each rank: `3`, or
// `0:1,1:3` by local rank, where 0 is none, 1 output, 2 error, 3 both.
class Streams {
 public:
  bool HasOut(int local_rank) const { return (Of(local_rank) & 1) != 0; }
  bool HasErr(int local_rank) const { return (Of(local_rank) & 2) != 0; }
  // The highest local rank that was named; -1: none.
  int last_rank() const {
    return by_rank_.empty() ? -1 : by_rank_.rbegin()->first;
  }
  bool empty() const { return all_ == 0 && by_rank_.empty(); }

  static StatusOr<Streams> Parse(absl::string_view option,
                                 absl::string_view value);
  static Streams Both() { return Streams(3); }

  Streams() = default;

 private:
  explicit Streams(int all) : all_(all) {}
  int Of(int local_rank) const;

  int all_ = 0;
  std::map<int, int> by_rank_;
};

// Parses local ranks, `0,2`. Ascending; empty for all.
StatusOr<std::vector<int>> ParseLocalRanks(absl::string_view option,
                                           absl::string_view value);

// Parses `SIGTERM,SIGINT`. Refuses signals that always end or stop a process
// and signals that this program needs itself.
StatusOr<std::vector<int>> ParseSignals(absl::string_view option,
                                        absl::string_view value);

// `join_timeout=600,last_call_timeout=30`, in seconds.
struct RendezvousTimes {
  std::chrono::milliseconds join_timeout = std::chrono::seconds(600);
  std::chrono::milliseconds last_call = std::chrono::seconds(30);
};
StatusOr<RendezvousTimes> ParseRendezvousConf(absl::string_view option,
                                              absl::string_view value);

// The options of muster-run.
struct LaunchOptions {
  // Only print LaunchHelpText() or the version. The other options are unset.
  bool help = false;
  bool version = false;

  // The number of hosts. Each has a muster-run; they meet on the coordinator
  // (Hosts) unless there can be only one.
  NodeCount nnodes;
  // This host's number; -1: the rendezvous assigns one.
  int node_rank = -1;
  // Ranks on this host; others may have more or fewer.
  int nproc_per_node = 1;

  // The address of an external coordinator. If empty, muster-run serves one.
  std::string rendezvous_host;
  int rendezvous_port = 0;
  // The other coordinators that may have the job.
  std::vector<base::Endpoint> rendezvous_others;
  // The muster-run with node_rank 0 serves the coordinator at that address.
  bool rendezvous_on_node_0 = false;
  // The first muster-run on the host of that address serves the coordinator,
  // unless there is one.
  bool rendezvous_on_its_host = false;
  // The job's name on the coordinator. Empty: muster-run generates one.
  std::string rendezvous_id;
  RendezvousTimes rendezvous_times;

  // How often the ranks are restarted after a failure.
  int max_restarts = 0;
  enum class Restart {
    kAll,   // all ranks of all hosts
    kRank,  // only the failed rank; the others recover by themselves
    kNone,  // none; the others go on without it
  };
  Restart restart = Restart::kAll;

  std::string role = "default";
  // Folder for the ranks' output. If empty, there is none; with redirects or
  // tee muster-run creates one.
  std::string log_dir;
  // Output that goes to log_dir instead of muster-run's own output, or to both.
  Streams redirects;
  Streams tee;
  // The local ranks whose output muster-run prints; empty for all.
  std::vector<int> local_ranks_filter;
  // This host's name or address for the others; empty: its host name.
  std::string local_addr;
  // MUSTER_HTTP_PORT of local rank 0; the next local ranks have the next ports.
  // 0: as in the environment.
  int metrics_port_base = 0;
  // Signals that are passed on to the ranks and stop them; whether the user set
  // them.
  std::vector<int> signals;
  bool signals_given = false;
  // Which CPUs a rank may use; empty for all.
  std::string numa_binding;
  // After a rank has failed: how long the others may take to end.
  std::chrono::milliseconds failure_grace = std::chrono::seconds(5);
  // Between SIGTERM and SIGKILL.
  std::chrono::milliseconds stop_grace = std::chrono::seconds(10);
  // A rank of this host for which others have waited this long hangs; 0: no
  // rank hangs.
  std::chrono::milliseconds hang_timeout{0};

  // If false, a rank gets `--local-rank=N` as its last argument.
  bool use_env = true;
  bool relay = true;

  // The program and its arguments.
  std::vector<std::string> command;

  // Whether more than one host takes part or may take part.
  bool several_hosts() const { return nnodes.max > 1; }
};

// Parses the options of muster-run. `arguments` is argv without argv[0]; the
// first argument that is no option, or the one after "--", begins the command.
// Options may have dashes or underscores and one or two leading dashes; the
// value follows after "=" or as the next argument. Missing options come from
// `environment`: MUSTER_<OPTION>, else PET_<OPTION>.
// Errors: INVALID_ARGUMENT; the text names the option (or variable) and its
//   value.
StatusOr<LaunchOptions> ParseLaunchOptions(
    const std::vector<std::string>& arguments, const Environment& environment);

// Every option with its meaning, unit and default; exit statuses.
std::string LaunchHelpText();

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_LAUNCH_OPTIONS_H_
