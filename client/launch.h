// For programs that muster-run or torchrun starts, and for those that start
// their ranks themselves.

#ifndef MUSTER_CLIENT_LAUNCH_H_
#define MUSTER_CLIENT_LAUNCH_H_

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

namespace muster {

// The exit status with which a rank says that it ends because another one
// failed (EX_TEMPFAIL of sysexits.h): the launcher looks for another culprit.
inline constexpr int kExitPeerFailed = 75;

// Runs `main`, a rank's, and returns its exit status: what `main` returns, or,
// when it throws, kExitPeerFailed for a DistError that others alone are to
// blame for and 1 for all else. The text goes to standard error and, for the
// launcher's report, to the file that TORCHELASTIC_ERROR_FILE names
// (torchelastic's
// @record).
int Record(const std::function<int()>& main);

struct SpawnOptions {
  // After a process failed, how long the others may take to end by themselves
  // before SIGTERM, and then before SIGKILL.
  std::chrono::milliseconds failure_grace = std::chrono::seconds(5);
  std::chrono::milliseconds stop_grace = std::chrono::seconds(10);
};

// Processes that Spawn started. Not thread-safe. The destructor kills those
// that still run.
class SpawnedProcesses {
 public:
  ~SpawnedProcesses();
  SpawnedProcesses(const SpawnedProcesses&) = delete;
  SpawnedProcesses& operator=(const SpawnedProcesses&) = delete;

  // Waits until all have ended, and ends them when one fails. False: `timeout`
  // passed first, and nothing has failed.
  // Throws DistError (kAborted: a process threw, exited with another status
  // than 0 or was killed; the text says which, first of all one that does not
  // blame others, and what it threw; culprits() has its index as rank).
  bool Join(std::chrono::milliseconds timeout = std::chrono::hours(24 * 365));

  // By index.
  std::vector<int> pids() const;

 private:
  friend std::unique_ptr<SpawnedProcesses> SpawnAsync(
      const std::function<void(int)>& fn, int nprocs,
      const SpawnOptions& options);
  struct Process;

  explicit SpawnedProcesses(const SpawnOptions& options);

  const SpawnOptions options_;
  std::vector<Process> processes_;
};

// Starts `nprocs` processes, each of which calls `fn` with its index, from 0,
// and exits with 0 when that returns (torch.multiprocessing.spawn). They are
// forks of this process: call it before anything starts a thread, so before any
// other function of the SDK. They are killed when this process, or the thread
// that calls, ends. Ranks and addresses are for `fn` to choose, for instance
//   InitProcessGroup({.init_method = "tcp://127.0.0.1:29500",
//                     .world_size = 4, .rank = index});
// Throws DistError: kInvalidArgument (nprocs is not 1 to 1024),
// kFailedPrecondition (there are other threads), kResourceExhausted.
std::unique_ptr<SpawnedProcesses> SpawnAsync(const std::function<void(int)>& fn,
                                             int nprocs,
                                             const SpawnOptions& options = {});

// SpawnAsync and Join.
void Spawn(const std::function<void(int)>& fn, int nprocs,
           const SpawnOptions& options = {});

}  // namespace muster

#endif  // MUSTER_CLIENT_LAUNCH_H_
