#include "client/control/exit_status.h"

#include <sys/wait.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace muster::internal {

ExitStatus ExitStatus::OfWait(int status) {
  if (!WIFSIGNALED(status)) return {.code = WEXITSTATUS(status)};
  return {.signal = WTERMSIG(status), .core_dumped = WCOREDUMP(status) != 0};
}

std::string SignalName(int signal) {
  const char* const name = sigabbrev_np(signal);
  if (name == nullptr) return absl::StrCat("signal ", signal);
  return absl::StrCat("SIG", name);
}

std::string Describe(const ExitStatus& status) {
  if (status.signal == 0) {
    return absl::StrCat("exited with status ", status.code);
  }
  return absl::StrCat("was killed by signal ", status.signal, " (",
                      SignalName(status.signal), ")",
                      status.core_dumped ? ", core dumped" : "");
}

}  // namespace muster::internal
