#ifndef MUSTER_WORKER_LAUNCHER_ATTEMPT_H_
#define MUSTER_WORKER_LAUNCHER_ATTEMPT_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/control/error_file.h"
#include "client/control/exit_status.h"
#include "muster/base/status.h"
#include "worker/launcher/failure.h"
#include "worker/launcher/late_ranks.h"
#include "worker/launcher/launch_options.h"
#include "worker/launcher/output_pump.h"
#include "worker/launcher/process.h"
#include "worker/launcher/rank_environment.h"
#include "worker/launcher/scratch_folder.h"
#include "worker/launcher/signal_plan.h"

namespace muster::worker {

// Prints a line of muster-run to standard error, in one write.
void Say(const std::string& text);

// How an attempt ended.
struct AttemptResult {
  // Every rank exited with 0.
  bool succeeded = false;
  // Interrupt was called before any rank failed.
  bool interrupted = false;
  // The signal that stopped muster-run; 0: none.
  int signal = 0;
  // The ranks that had to be killed after the signal, for people: "ranks 1, 3".
  std::string killed;
  // The exit status of the first failure, as in shells; 1 if that was a rank
  // that ended with 0 before the others were done.
  int status = 0;
  // All failed ranks reported the loss of a peer: the cause is elsewhere.
  bool lost_peer = false;
  // If lost_peer: the ranks of other hosts that they blame.
  std::vector<internal::Culprit> blamed;
  // The first failure, for people: rank, host, exit status, last lines.
  std::string failure;
};

// One run of this host's ranks, from their start to their end. All calls come
// from one thread, which has no other attempt in progress.
class Attempt {
 public:
  struct Setting {
    const LaunchOptions& options;
    const SignalPlan& signals;
    const CoordinatorAddress& coordinator;
    const Environment& environment;
    // A signalfd for SIGCHLD and the signals of SignalPlan, which are blocked
    // in every thread.
    int signal_fd = -1;
    // When it is readable, `on_wake` is called; -1: never.
    int wake_fd = -1;
    std::function<void()> on_wake = nullptr;
    // Called for a rank that has ended by itself and is not restarted.
    std::function<void(const RankExit&)> on_gone = nullptr;
  };

  explicit Attempt(const Setting& setting, const Assignment& assignment);
  ~Attempt();

  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // Starts all ranks. After an error none runs.
  // Errors: NOT_FOUND, PERMISSION_DENIED (the program), FAILED_PRECONDITION
  //   (--log-dir), RESOURCE_EXHAUSTED (no process or descriptor left).
  Status Start();

  // Runs until every rank has ended and all output is printed.
  AttemptResult Supervise();

  // Returns the outcome after Supervise. Ranks of other hosts blame the ranks
  // `elsewhere`.
  AttemptResult Report(
      const std::vector<internal::Culprit>& elsewhere = {}) const;

  // Ends the ranks because of `reason`. Unless `soon`, they first have
  // --failure-grace to end by themselves; then they get SIGTERM and
  // --stop-grace. Call it from on_wake.
  void Interrupt(const std::string& reason, bool soon);

  // Kills the process if it is a rank. It hangs: `fate` ("was lost to the
  // others") and `cause` describe that. Call it from on_wake.
  void KillHung(pid_t pid, const std::string& fate, const std::string& cause);

  // `joined` ranks of all hosts wait in the rendezvous, and the ranks `missing`
  // of this host (may be empty) are not there. Reports them now and then, and
  // kills those that hang (LateRanks). Call it from on_wake.
  void NoteMissing(const std::vector<int>& missing, int joined);

  // No rank of this host has come to the coordinator yet. Call it from on_wake.
  void NoteThatNoneCame();

 private:
  // The state of the attempt. Each but the first has a deadline.
  enum class Phase { kRunning, kFailing, kStopping, kKilling };

  struct Rank {
    int rank = 0;
    pid_t pid = 0;
    int pidfd = -1;
    bool ended = false;
    bool hung = false;  // was killed because it hung
    std::string hang_cause;
    // How often this rank alone was restarted.
    int restarts = 0;
    size_t error_stream = 0;
    std::string error_file;
  };

  Status StartAll();
  Status StartRank(Rank& rank);
  // The folder of a rank's output and error file, with a slash.
  std::string GetFolder(const Rank& rank) const;
  StatusOr<std::string> MakeFolder(const Rank& rank) const;
  void Watch(int fd, uint64_t token) const;
  // Waits for events or the deadline, and handles them.
  void HandleEvents();
  void PassOn(int signal) const;
  void OnSignal();
  void OnRankEnd(Rank& rank);
  void KillOrphans(const Rank& rank) const;
  bool RestartRank(Rank& rank, const internal::ExitStatus& status);
  void OnDeadline();
  void Fail();
  void Stop(int signal);
  void Kill();
  bool AllEnded() const;
  std::vector<int> Running() const;
  int TimeoutMs() const;
  std::string DescribeFailure(size_t first) const;
  int LocalRank(int rank) const { return rank - assignment_.first_rank; }

  const Setting setting_;
  const LaunchOptions& options_;
  const Assignment assignment_;
  std::optional<ProcessGroup> group_;
  OutputPump output_;
  std::string program_;
  // For error files, if there is no --log-dir.
  std::optional<ScratchFolder> scratch_;
  std::vector<Rank> ranks_;
  // CPUs by local rank; empty without --numa-binding.
  std::vector<std::vector<int>> cpus_;
  int epoll_fd_ = -1;
  LateRanks late_ranks_;
  Phase phase_ = Phase::kRunning;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  int stop_signal_ = 0;
  bool interrupted_ = false;
  std::vector<RankExit> exits_;
  bool swept_ = false;
  bool output_done_ = false;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_ATTEMPT_H_
