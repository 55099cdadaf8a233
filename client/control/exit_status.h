#ifndef MUSTER_CLIENT_CONTROL_EXIT_STATUS_H_
#define MUSTER_CLIENT_CONTROL_EXIT_STATUS_H_

#include <string>

namespace muster::internal {

// How a process ended: by exit or by a signal.
struct ExitStatus {
  int code = 0;    // exit status, when `signal` is 0
  int signal = 0;  // the signal that killed it
  bool core_dumped = false;

  // `status` comes from waitpid and is that of a process that has ended.
  static ExitStatus OfWait(int status);

  bool ok() const { return code == 0 && signal == 0; }
  // The status that a shell shows: 128 + the signal's number for a signal.
  int shell_status() const { return signal != 0 ? 128 + signal : code; }
};

// Returns "exited with status 3", "was killed by signal 9 (SIGKILL)".
std::string Describe(const ExitStatus& status);

// Returns "SIGTERM", or "signal 40" if the signal has no name.
std::string SignalName(int signal);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_EXIT_STATUS_H_
