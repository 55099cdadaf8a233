#ifndef MUSTER_WORKER_LAUNCHER_PROCESS_H_
#define MUSTER_WORKER_LAUNCHER_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "worker/launcher/launch_options.h"

namespace muster::worker {

// ProcessGroup is the process group of all ranks of this host and their
// children, and a guard process that kills the group if this process ends for
// any reason.
class ProcessGroup {
 public:
  // Forks the guard. If this process ends without KillAll, the guard also
  // removes the folder `scratch` (empty: none). Call it from the thread that
  // will call Spawn: the kernel ties a rank's life to that thread.
  // Errors: RESOURCE_EXHAUSTED (no process or descriptor left).
  static StatusOr<ProcessGroup> Create(const std::string& scratch = "");

  // Calls KillAll.
  ~ProcessGroup();
  ProcessGroup(ProcessGroup&& other) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) = delete;

  struct Program {
    std::string path;
    std::vector<std::string> arguments;  // with argv[0]
    Environment environment;
    int stdout_fd = -1;
    int stderr_fd = -1;
    std::vector<int> ignored_signals = {};
    // CPUs on which it may run; empty: those of this process.
    std::vector<int> cpus = {};
  };

  // Starts a process in the group. It has an empty standard input, all signals
  // unblocked and at their defaults (or ignored), and no other descriptors than
  // the three.
  // Errors: PERMISSION_DENIED (the program cannot be executed; the text says
  //   why), RESOURCE_EXHAUSTED.
  StatusOr<pid_t> Spawn(const Program& program);

  // Sends `signal` to every process of the group. The guard ignores all but
  // SIGKILL.
  void Signal(int signal) const;

  // Kills the rest of the group, every process that was started in it and has
  // left it (a daemon), and the guard. The group is over then.
  void KillAll();

  // Kills the processes that a rank left behind when it ended: all with
  // `variable` (NAME=VALUE) in their environment whose parent is dead.
  void KillOrphans(const std::string& variable) const;

  // Reaps processes that a rank started and that outlived it, so that no
  // zombies stay. Does not reap `ranks`.
  void ReapOrphans(const std::vector<pid_t>& ranks) const;

 private:
  ProcessGroup(pid_t guard, int guard_pipe);
  static void KillChildren(const std::function<bool(pid_t)>& is_meant);

  pid_t guard_;
  // The guard has the other end and wakes when this end is closed.
  int guard_pipe_;
};

// Returns the file to execute for `name`: `name` itself if it has a slash, else
// the first executable of that name in `search_path` (as PATH).
// Errors: NOT_FOUND, PERMISSION_DENIED; the text names the program.
StatusOr<std::string> FindProgram(const std::string& name,
                                  const std::string& search_path);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_PROCESS_H_
