#include "muster/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/endpoint.h"
#include "client/control/error_file.h"
#include "client/control/exit_status.h"
#include "client/control/throw.h"
#include "muster/base/status.h"
#include "muster/errors.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kNprocsMax = 1024;
// The limit of a process's error message; a pipe holds that much.
constexpr size_t kMessageBytesMax = 4096;

// Returns the exit status for an uncaught `error`. All ranks may throw the same
// one, as when they disagree on a collective: a rank that the error names must
// not say that another rank is to blame.
int ToExitStatus(const std::exception& error) {
  const auto* const dist = dynamic_cast<const DistError*>(&error);
  if (dist == nullptr || dist->culprits().empty()) return 1;
  for (const MemberInfo& culprit : dist->culprits()) {
    if (culprit.pid == getpid() && culprit.host == internal::HostName()) {
      return 1;
    }
  }
  return kExitPeerFailed;
}

// Returns the culprits of `error`, by rank.
std::vector<internal::Culprit> ToCulprits(const std::exception& error) {
  const auto* const dist = dynamic_cast<const DistError*>(&error);
  std::vector<internal::Culprit> culprits;
  if (dist == nullptr) return culprits;
  std::map<int, int64_t> pids;
  for (const MemberInfo& culprit : dist->culprits()) {
    pids.emplace(culprit.rank, culprit.pid);
  }
  for (const int rank : dist->culprit_ranks()) {
    const auto pid = pids.find(rank);
    culprits.push_back(
        {.rank = rank, .pid = pid == pids.end() ? 0 : pid->second});
  }
  return culprits;
}

// Calls `main`. Passes the text and culprits of an exception to `report`, and
// returns its exit status.
template <typename Report>
int Guarded(const std::function<int()>& main, Report report) {
  try {
    return main();
  } catch (const std::exception& error) {
    report(error.what(), ToCulprits(error));
    return ToExitStatus(error);
  } catch (...) {
    report("an exception that is no std::exception",
           std::vector<internal::Culprit>());
    return 1;
  }
}

ptrdiff_t CountThreads() {
  std::error_code error;
  return std::distance(
      std::filesystem::directory_iterator("/proc/self/task", error),
      std::filesystem::directory_iterator());
}

[[noreturn]] void ThrowControl(StatusCode code, std::string text) {
  internal::Throw(internal::ErrorSource::kControl,
                  Status(code, std::move(text)));
}

}  // namespace

int Record(const std::function<int()>& main) {
  return Guarded(main, [](const char* text,
                          const std::vector<internal::Culprit>& culprits) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
    const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
    internal::WriteErrorFile(path == nullptr ? "" : path, text, culprits);
  });
}

struct SpawnedProcesses::Process {
  pid_t pid = 0;
  int pidfd = -1;
  int message_fd = -1;  // the message of its exception
  // From waitpid; valid if pidfd is -1.
  int status = 0;
  int told = 0;  // the last signal that it was sent

  bool ended() const { return pidfd < 0; }
  bool failed() const { return ended() && status != 0; }
  // How likely this process caused the failure of the others.
  int Weight() const {
    if (!failed()) return 0;
    // A peer's failure never ends a process by SIGKILL.
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && told != SIGKILL) {
      return 4;
    }
    if (told != 0) return 1;
    return WIFEXITED(status) && WEXITSTATUS(status) == kExitPeerFailed ? 2 : 3;
  }
  std::string Describe() const {
    const auto end = internal::ExitStatus::OfWait(status);
    if (end.signal != 0) return internal::Describe(end);
    std::string message(kMessageBytesMax, '\0');
    const ssize_t count = read(message_fd, message.data(), message.size());
    message.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (!message.empty()) return absl::StrCat("threw: ", message);
    return internal::Describe(end);
  }
};

SpawnedProcesses::SpawnedProcesses(const SpawnOptions& options)
    : options_(options) {}

SpawnedProcesses::~SpawnedProcesses() {
  for (Process& process : processes_) {
    if (!process.ended()) {
      kill(process.pid, SIGKILL);
      waitpid(process.pid, nullptr, 0);
      close(process.pidfd);
    }
    close(process.message_fd);
  }
}

std::vector<int> SpawnedProcesses::pids() const {
  std::vector<int> pids;
  for (const Process& process : processes_) pids.push_back(process.pid);
  return pids;
}

bool SpawnedProcesses::Join(milliseconds timeout) {
  Clock::time_point until = Clock::now() + timeout;
  // The signal to send at `until`; 0: return.
  int next_signal = 0;
  const auto find = [&](bool (Process::*is)() const) {
    return std::any_of(processes_.begin(), processes_.end(),
                       [&](const Process& process) { return (process.*is)(); });
  };
  while (!std::all_of(processes_.begin(), processes_.end(),
                      [](const Process& p) { return p.ended(); })) {
    std::vector<pollfd> ready;
    std::vector<Process*> polled;
    for (Process& process : processes_) {
      if (process.ended()) continue;
      ready.push_back({process.pidfd, POLLIN, 0});
      polled.push_back(&process);
    }
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    const int64_t wait = std::clamp<int64_t>(left.count(), 0, 3'600'000);
    poll(ready.data(), ready.size(), static_cast<int>(wait));
    for (size_t i = 0; i < polled.size(); ++i) {
      if (ready[i].revents == 0) continue;
      waitpid(polled[i]->pid, &polled[i]->status, 0);
      close(polled[i]->pidfd);
      polled[i]->pidfd = -1;
    }
    if (next_signal == 0 && find(&Process::failed)) {
      next_signal = SIGTERM;
      until = Clock::now() + options_.failure_grace;
    }
    if (Clock::now() < until) continue;
    if (next_signal == 0) return false;
    for (Process& process : processes_) {
      if (process.ended()) continue;
      process.told = next_signal;
      kill(process.pid, next_signal);
    }
    next_signal = SIGKILL;
    until = Clock::now() + options_.stop_grace;
  }
  const auto culprit = std::max_element(processes_.begin(), processes_.end(),
                                        [](const Process& a, const Process& b) {
                                          return a.Weight() < b.Weight();
                                        });
  if (culprit == processes_.end() || !culprit->failed()) return true;
  const int index = static_cast<int>(culprit - processes_.begin());
  const MemberInfo member = {.rank = index, .pid = culprit->pid};
  internal::Throw(
      internal::ErrorSource::kControl,
      internal::WithCulprits(
          AbortedError(absl::StrCat("Spawn: process ", index, " (pid ",
                                    culprit->pid, ") ", culprit->Describe())),
          {{member}}));
}

std::unique_ptr<SpawnedProcesses> SpawnAsync(const std::function<void(int)>& fn,
                                             int nprocs,
                                             const SpawnOptions& options) {
  if (nprocs < 1 || nprocs > kNprocsMax) {
    ThrowControl(StatusCode::kInvalidArgument,
                 absl::StrCat("Spawn: nprocs must be 1 to ", kNprocsMax,
                              ", got ", nprocs));
  }
  internal::CheckNotNegative(options.failure_grace,
                             "SpawnOptions::failure_grace");
  internal::CheckNotNegative(options.stop_grace, "SpawnOptions::stop_grace");
  if (const ptrdiff_t threads = CountThreads(); threads > 1) {
    ThrowControl(StatusCode::kFailedPrecondition,
                 absl::StrCat("Spawn: this process has ", threads,
                              " threads, and a fork would have only one of "
                              "them; call it before all else"));
  }
  std::unique_ptr<SpawnedProcesses> spawned(new SpawnedProcesses(options));
  // Otherwise each process would write the content of the buffers.
  std::fflush(nullptr);
  const pid_t parent = getpid();
  for (int index = 0; index < nprocs; ++index) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      ThrowControl(StatusCode::kResourceExhausted,
                   absl::StrCat("Spawn: no pipe for process ", index, ": ",
                                std::strerror(errno)));
    }
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      // The child must not kill its siblings when it throws.
      for (const auto& sibling : spawned->processes_) {
        close(sibling.pidfd);
        close(sibling.message_fd);
      }
      close(ends[0]);
      const int status = Guarded(
          [&] {
            fn(index);
            return 0;
          },
          [&](const char* text, const std::vector<internal::Culprit>&) {
            const size_t length = std::min(std::strlen(text), kMessageBytesMax);
            const ssize_t ignored = write(ends[1], text, length);
            (void)ignored;
          });
      std::fflush(nullptr);
      // Skips destructors of the parent's objects.
      _exit(status);
    }
    const int error = errno;
    close(ends[1]);
    // glibc's wrapper has no C linkage in C++ (2.36).
    const int pidfd =
        pid < 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (pidfd < 0) {
      if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
      }
      close(ends[0]);
      ThrowControl(StatusCode::kResourceExhausted,
                   absl::StrCat("Spawn: cannot start process ", index, ": ",
                                std::strerror(pid < 0 ? error : errno)));
    }
    spawned->processes_.push_back(
        {.pid = pid, .pidfd = pidfd, .message_fd = ends[0]});
  }
  return spawned;
}

void Spawn(const std::function<void(int)>& fn, int nprocs,
           const SpawnOptions& options) {
  SpawnAsync(fn, nprocs, options)->Join();
}

}  // namespace muster
