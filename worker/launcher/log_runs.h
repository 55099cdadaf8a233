#ifndef MUSTER_WORKER_LAUNCHER_LOG_RUNS_H_
#define MUSTER_WORKER_LAUNCHER_LOG_RUNS_H_

#include <string>

namespace muster::worker {

// Where the output of the run `run` of `job`, from 1, is below --log-dir:
// "LOG_DIR/JOB", and "LOG_DIR/JOB.2" for the second.
std::string LogRunFolder(const std::string& log_dir, const std::string& job,
                         int run);

// The folder of an attempt in it: "attempt_0" for the first.
std::string AttemptFolder(int attempt);

// The lowest number, `run` or a later one, from which on no run has output of
// `attempt` or a later one. So whatever lies in the folder stays, and a number
// that is good for one host is good for all whose own is not higher.
int FreeLogRun(const std::string& log_dir, const std::string& job, int run,
               int attempt);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_LOG_RUNS_H_
