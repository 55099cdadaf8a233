#ifndef MUSTER_WORKER_LAUNCHER_LAUNCH_OPTIONS_H_
#define MUSTER_WORKER_LAUNCHER_LAUNCH_OPTIONS_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/options.h"
#include "base/status.h"

namespace muster::worker {

using base::Environment;

// Every function here returns INVALID_ARGUMENT with a text that begins with
// `option` and has the value.

// The hosts of a job: `2`, or `1:4` for any number of them from 1 to 4.
struct NodeCount {
  int min = 1;
  int max = 1;
};
StatusOr<NodeCount> ParseNodeCount(absl::string_view option,
                                   absl::string_view value);

// What a host has for ranks to run on.
struct Devices {
  int cpus = 1;  // that this process may keep busy (UsableProcessors)
  int gpus = 0;
};
// Of this host; GPUs as GpuNodes has them.
Devices DevicesOfHost(const Environment& environment);

// `4`, `cpu` (one for each), `gpu` (one for each; none is an error), `auto`
// (`gpu` where there are any, else `cpu`).
StatusOr<int> ParseNproc(absl::string_view option, absl::string_view value,
                         const Devices& devices);

// Standard output, standard error, or both, of each rank: `3`, or `0:1,1:3` by
// local rank, where 0 is none, 1 output, 2 error, 3 both.
class Streams {
 public:
  bool HasOut(int local_rank) const { return (Of(local_rank) & 1) != 0; }
  bool HasErr(int local_rank) const { return (Of(local_rank) & 2) != 0; }
  // The last rank that was named; -1: none was.
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

// `0,2`: local ranks, ascending; empty for all.
StatusOr<std::vector<int>> ParseLocalRanks(absl::string_view option,
                                           absl::string_view value);

// `SIGTERM,SIGINT`. Those that end or stop a process whatever it does, and
// those that this program needs itself, are refused.
StatusOr<std::vector<int>> ParseSignals(absl::string_view option,
                                        absl::string_view value);

// `join_timeout=600,last_call_timeout=30`, in seconds.
struct RendezvousTimes {
  std::chrono::milliseconds join_timeout = std::chrono::seconds(600);
  std::chrono::milliseconds last_call = std::chrono::seconds(30);
};
StatusOr<RendezvousTimes> ParseRendezvousConf(absl::string_view option,
                                              absl::string_view value);

// What muster-run was asked to do.
struct LaunchOptions {
  // Only print LaunchHelpText(), or the version; nothing else is set then.
  bool help = false;
  bool version = false;

  // How many hosts may take part. Each has a muster-run, which find each other
  // on the coordinator (Agent) unless there can be only one.
  NodeCount nnodes;
  // Which of them this is; -1: the rendezvous gives it a number.
  int node_rank = -1;
  // Ranks on this host; others may have more or fewer.
  int nproc_per_node = 1;

  // Where an external coordinator listens. Without a host, muster-run serves
  // one itself.
  std::string rendezvous_host;
  int rendezvous_port = 0;
  // The coordinator is served at that address by the muster-run with
  // node_rank 0.
  bool rendezvous_on_node_0 = false;
  // The first muster-run on the host of that address serves the coordinator,
  // unless one is there.
  bool rendezvous_on_its_host = false;
  // The job's name on the coordinator. Empty: muster-run makes one up.
  std::string rendezvous_id;
  RendezvousTimes rendezvous_times;

  // How often the ranks are started again after a failure.
  int max_restarts = 0;
  enum class Restart {
    kAll,   // all ranks of all hosts
    kRank,  // the one that failed; the others recover by themselves
    kNone,  // none: the others go on without it
  };
  Restart restart = Restart::kAll;

  std::string role = "default";
  // Folder for the ranks' output; empty for none, or with redirects or tee for
  // one that muster-run makes.
  std::string log_dir;
  // What goes there and not to muster-run's own output, or also there.
  Streams redirects;
  Streams tee;
  // The local ranks whose output muster-run prints; empty for all.
  std::vector<int> local_ranks_filter;
  // This host's name or address for the others; empty: its host name.
  std::string local_addr;
  // MUSTER_HTTP_PORT of local rank 0; the others have those after it. 0: the
  // environment says it.
  int metrics_port_base = 0;
  // Signals that stop the ranks, to which they are passed on; whether they were
  // asked for.
  std::vector<int> signals;
  bool signals_given = false;
  // Which CPUs a rank may use; empty for all.
  std::string numa_binding;
  // After a rank failed, how long the others may take to end by themselves.
  std::chrono::milliseconds failure_grace = std::chrono::seconds(5);
  // Between SIGTERM and SIGKILL.
  std::chrono::milliseconds stop_grace = std::chrono::seconds(10);
  // A rank of this host hangs that others have waited for so long; 0: none
  // does.
  std::chrono::milliseconds hang_timeout{0};

  // Without it a rank has `--local-rank=N` as its last argument.
  bool use_env = true;

  // The program and its arguments.
  std::vector<std::string> command;

  // More than one host takes part, or may.
  bool several_hosts() const { return nnodes.max > 1; }
};

// Reads the options of muster-run. `arguments` is argv without argv[0]; the
// first one that is no option, or the one after "--", begins the command.
// Options may be spelt with dashes or underscores, with one leading dash or
// two, and their value follows after "=" or as the next argument. A value that
// is not there comes from `environment`: MUSTER_<OPTION>, else PET_<OPTION>.
// Errors: INVALID_ARGUMENT; the text names the option (or variable) and its
//   value.
StatusOr<LaunchOptions> ParseLaunchOptions(
    const std::vector<std::string>& arguments, const Environment& environment);

// Every option with its meaning, unit and default; exit statuses.
std::string LaunchHelpText();

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_LAUNCH_OPTIONS_H_
