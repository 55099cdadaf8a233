#ifndef MUSTER_DATAPLANE_TESTING_PROCESS_WORLD_H_
#define MUSTER_DATAPLANE_TESTING_PROCESS_WORLD_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/communicator.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::testing {

// How a rank's process ended and what its body returned.
struct RankOutcome {
  int wait_status = 0;
  std::string report;
};

// A group whose ranks are processes of this machine, each at its GetAddress.
// The processes are forked, so this process must have no other threads when it
// makes one.
class ProcessWorld {
 public:
  // The code of a rank. Its result goes into RankOutcome::report.
  using Body = std::function<std::string(Communicator&)>;

  // How a rank joins the group.
  struct Joining {
    // Called first.
    std::function<void(int rank)> begin = [](int) {};
    // Changes the options with which it joins.
    std::function<void(BackendOptions& options)> adjust = [](BackendOptions&) {
    };
    std::chrono::milliseconds timeout = std::chrono::seconds(60);
  };

  // Forks the ranks; each joins the group and calls `body`.
  ProcessWorld(const std::string& backend, int world_size, const Body& body)
      : ProcessWorld(backend, world_size, body, Joining()) {}
  ProcessWorld(const std::string& backend, int world_size, const Body& body,
               const Joining& joining);
  ~ProcessWorld();  // Kills the running ranks.

  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  // Waits until rank `rank` has called Ready().
  void AwaitReady(int rank);

  // For bodies: lets AwaitReady of this rank return.
  static void Ready();

  void Signal(int rank, int signal);

  // Waits until all running ranks have ended. A rank that a signal ended has an
  // empty report.
  std::vector<RankOutcome> Join() { return JoinAllBut(-1); }

  // As Join, without rank `rank`.
  std::vector<RankOutcome> JoinAllBut(int rank);

 private:
  struct Process {
    pid_t pid = -1;
    int ready_pipe = -1;
    int report_pipe = -1;
  };

  std::string directory_;
  std::vector<Process> processes_;
};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_PROCESS_WORLD_H_
