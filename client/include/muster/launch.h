// Functions for programs that muster-run or torchrun starts, and for programs
// that start their ranks themselves.

#ifndef MUSTER_LAUNCH_H_
#define MUSTER_LAUNCH_H_

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "muster/base/export.h"

namespace MUSTER_EXPORT muster {

// The exit status of a rank that ends because another rank failed (EX_TEMPFAIL
// of sysexits.h): the launcher then blames another process.
inline constexpr int kExitPeerFailed = 75;

// Runs `main`, a rank's main function, and returns the exit status: what `main`
// returns, or, if it throws, kExitPeerFailed for a DistError that blames only
// other ranks, and 1 for everything else. Writes the exception's text to
// standard error and, for the launcher's report, to the file that
// TORCHELASTIC_ERROR_FILE names, as torchelastic's @record does.
int Record(const std::function<int()>& main);

struct SpawnOptions {
  // How long the other processes may take to end by themselves after one has
  // failed, before they get SIGTERM, and then before they get SIGKILL.
  std::chrono::milliseconds failure_grace = std::chrono::seconds(5);
  std::chrono::milliseconds stop_grace = std::chrono::seconds(10);
};

// The processes that SpawnAsync started. Not thread-safe. The destructor kills
// those that still run.
class SpawnedProcesses {
 public:
  ~SpawnedProcesses();
  SpawnedProcesses(const SpawnedProcesses&) = delete;
  SpawnedProcesses& operator=(const SpawnedProcesses&) = delete;

  // Waits until all processes have ended. When one fails, ends the others.
  // Returns false if `timeout` passes first and none has failed.
  // Throws DistError (kAborted) if a process threw, was killed, or exited with
  // another status than 0. The text names one such process, preferably one that
  // does not blame others, and what it threw; culprits() has its index as the
  // rank.
  bool Join(std::chrono::milliseconds timeout = std::chrono::hours(24 * 365));

  // The process ids, by index.
  std::vector<int> pids() const;

 private:
  friend std::unique_ptr<SpawnedProcesses> SpawnAsync(
      const std::function<void(int)>& fn, int nprocs,
      const SpawnOptions& options);
  struct MUSTER_HIDDEN Process;

  explicit SpawnedProcesses(const SpawnOptions& options);

  const SpawnOptions options_;
  std::vector<Process> processes_;
};

// Starts `nprocs` processes, as torch.multiprocessing.spawn does. Each calls
// `fn` with its index, from 0, and exits with 0 when `fn` returns. They are
// forks of this process: make the call before anything starts a thread, so
// before any other function of the SDK. They are killed when this process, or
// the thread that makes the call, ends. `fn` chooses ranks and addresses, for
// instance
//   InitProcessGroup({.init_method = "tcp://127.0.0.1:29500",
//                     .world_size = 4, .rank = index});
// Throws DistError: kInvalidArgument (nprocs is not 1 to 1024),
// kFailedPrecondition (there are other threads), kResourceExhausted (no pipe,
// or no process).
std::unique_ptr<SpawnedProcesses> SpawnAsync(const std::function<void(int)>& fn,
                                             int nprocs,
                                             const SpawnOptions& options = {});

// Calls SpawnAsync and then Join.
void Spawn(const std::function<void(int)>& fn, int nprocs,
           const SpawnOptions& options = {});

}  // namespace muster

#endif  // MUSTER_LAUNCH_H_
