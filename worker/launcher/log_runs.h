#ifndef MUSTER_WORKER_LAUNCHER_LOG_RUNS_H_
#define MUSTER_WORKER_LAUNCHER_LOG_RUNS_H_

#include <string>

namespace muster::worker {

// The folder below --log-dir for the output of run `run`, from 1, of `job`:
// "LOG_DIR/JOB", and "LOG_DIR/JOB.2" for the second.
std::string LogRunFolder(const std::string& log_dir, const std::string& job,
                         int run);

// The folder of an attempt in that folder: "attempt_0" for the first.
std::string AttemptFolder(int attempt);

// Returns the lowest number, at least `run`, such that no run with this or a
// later number has output of `attempt` or a later attempt. So no output is
// overwritten, and a number that is free on one host is usable on all hosts
// whose own number is not higher.
int FreeLogRun(const std::string& log_dir, const std::string& job, int run,
               int attempt);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_LOG_RUNS_H_
