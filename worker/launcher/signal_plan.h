#ifndef MUSTER_WORKER_LAUNCHER_SIGNAL_PLAN_H_
#define MUSTER_WORKER_LAUNCHER_SIGNAL_PLAN_H_

#include <algorithm>
#include <vector>

namespace muster::worker {

// How muster-run handles signals. The signals that it reads, `stop` and `pass`,
// are blocked in all its threads.
struct SignalPlan {
  // Passed on to the ranks and their children, which then end or are killed
  // after --stop-grace.
  std::vector<int> stop;
  // Passed on to the ranks' processes, without consequence.
  std::vector<int> pass;
  // Ignored by muster-run and the ranks, as at muster-run's start.
  std::vector<int> ignored;

  bool Stops(int signal) const {
    return std::find(stop.begin(), stop.end(), signal) != stop.end();
  }
  bool Passes(int signal) const {
    return std::find(pass.begin(), pass.end(), signal) != pass.end();
  }
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_SIGNAL_PLAN_H_
