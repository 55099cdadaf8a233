// The values of muster-run's options that are more than a word or a number.

#ifndef MUSTER_WORKER_LAUNCHER_OPTION_VALUES_H_
#define MUSTER_WORKER_LAUNCHER_OPTION_VALUES_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::worker {

// Every function here returns INVALID_ARGUMENT with a text that begins with
// `option` and has the value.

// The hosts of a job: `2`, or `1:4` for any number of them from 1 to 4.
struct NodeCount {
  int min = 1;
  int max = 1;
};
absl::StatusOr<NodeCount> ParseNodeCount(absl::string_view option,
                                         absl::string_view value);

// What a host has for ranks to run on.
struct Devices {
  int cpus = 1;  // that this process may keep busy (UsableProcessors)
  int gpus = 0;
};
// Of this host; GPUs as GpuNodes has them.
Devices DevicesOfHost(const std::map<std::string, std::string>& environment);

// `4`, `cpu` (one for each), `gpu` (one for each; none is an error), `auto`
// (`gpu` where there are any, else `cpu`).
absl::StatusOr<int> ParseNproc(absl::string_view option,
                               absl::string_view value, const Devices& devices);

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

  static absl::StatusOr<Streams> Parse(absl::string_view option,
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
absl::StatusOr<std::vector<int>> ParseLocalRanks(absl::string_view option,
                                                 absl::string_view value);

// `SIGTERM,SIGINT`. Those that end or stop a process whatever it does, and
// those that this program needs itself, are refused.
absl::StatusOr<std::vector<int>> ParseSignals(absl::string_view option,
                                              absl::string_view value);

// `join_timeout=600,last_call_timeout=30`, in seconds.
struct RendezvousTimes {
  std::chrono::milliseconds join_timeout = std::chrono::seconds(600);
  std::chrono::milliseconds last_call = std::chrono::seconds(30);
};
absl::StatusOr<RendezvousTimes> ParseRendezvousConf(absl::string_view option,
                                                    absl::string_view value);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_OPTION_VALUES_H_
