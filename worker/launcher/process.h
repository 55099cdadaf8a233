#ifndef MUSTER_WORKER_LAUNCHER_PROCESS_H_
#define MUSTER_WORKER_LAUNCHER_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "worker/launcher/launch_options.h"

namespace muster::worker {

// ProcessGroup is the process group of all ranks of this host and their
// children, and a guard process that kills it when this process is gone, for
// whatever reason.
class ProcessGroup {
 public:
  // Forks the guard, which also removes the folder `scratch` (empty: none) when
  // this process is gone without KillAll. Call it from the thread that will
  // call Spawn: the kernel ties a rank's life to that thread. Errors:
  // RESOURCE_EXHAUSTED (no process or descriptor left).
  static StatusOr<ProcessGroup> Create(const std::string& scratch = "");

  // As KillAll.
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
    // Those that it may run on; empty: as this process.
    std::vector<int> cpus = {};
  };

  // Starts a process in the group, with an empty standard input, all signals
  // unblocked and at their defaults (or ignored), and no descriptor but the
  // three.
  // Errors: PERMISSION_DENIED (the program cannot be executed; the text says
  //   why), RESOURCE_EXHAUSTED.
  StatusOr<pid_t> Spawn(const Program& program);

  // Sends `signal` to every process of the group. The guard ignores all but
  // SIGKILL, which ends it too.
  void Signal(int signal) const;

  // Kills what is left of the group and every process that was started in it
  // and moved out of it (a daemon), and the guard. The group is over then.
  void KillAll();

  // Kills what a rank that has ended left behind: every process that was
  // started with `variable` (NAME=VALUE) in its environment, wherever it is,
  // unless its parent still lives.
  void KillOrphans(const std::string& variable) const;

  // Reaps processes that were started by a rank and outlived it, so that they
  // do not stay as zombies; `ranks` are left alone.
  void ReapOrphans(const std::vector<pid_t>& ranks) const;

 private:
  ProcessGroup(pid_t guard, int guard_pipe);
  static void KillChildren(const std::function<bool(pid_t)>& is_meant);

  pid_t guard_;
  // Its other end is the guard's; that this end closes is what wakes it.
  int guard_pipe_;
};

// The file to execute for `name`: `name` itself when it has a slash, else the
// first executable of that name in `search_path` (as PATH).
// Errors: NOT_FOUND, PERMISSION_DENIED; the text names the program.
StatusOr<std::string> FindProgram(const std::string& name,
                                  const std::string& search_path);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_PROCESS_H_
