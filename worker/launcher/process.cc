#include "worker/launcher/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace muster::worker {
namespace {

constexpr std::chrono::seconds kKillTime(5);

Status ErrnoError(StatusCode code, absl::string_view what, int error) {
  return Status(code, absl::StrCat(what, ": ", std::strerror(error)));
}

// Leaves the group `group`, kills it, and removes the folder `scratch`. Only
// async-signal-safe calls.
[[noreturn]] void EndGroup(pid_t group, const char* scratch) {
  setpgid(0, 0);
  kill(-group, SIGKILL);
  // A process that is being killed may still create a file.
  for (int attempt = 0; attempt < 3 && access(scratch, F_OK) == 0; ++attempt) {
    const pid_t remover = _Fork();
    if (remover == 0) {
      execl("/bin/rm", "rm", "-rf", "--", scratch, nullptr);
      _exit(127);
    }
    if (remover < 0 || waitpid(remover, nullptr, 0) < 0) break;
  }
  _exit(0);
}

// The main function of the guard. Only async-signal-safe calls.
[[noreturn]] void Guard(int pipe_fd, const char* scratch) {
  setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  prctl(PR_SET_NAME, "muster-guard");
  // Closes the launcher's output: its reader waits for the end.
  dup2(pipe_fd, 0);
  close_range(1, ~0U, 0);
  char byte;
  while (true) {
    const ssize_t count = read(0, &byte, 1);
    if (count == 0 || (count < 0 && errno != EINTR)) break;
  }
  const pid_t guard = getpid();
  const pid_t child = *scratch == '\0' ? -1 : _Fork();
  if (child == 0) EndGroup(guard, scratch);
  if (child < 0) kill(0, SIGKILL);
  // A kill here would also kill the child, which kills this process.
  while (true) pause();
}

struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* envp;
  int stdout_fd;
  int stderr_fd;
  int error_fd;
  pid_t group;
  pid_t parent;
  sigset_t ignored;
  const cpu_set_t* cpus;  // null: the parent's
  size_t cpus_bytes;
};

// Reports errno through `error_fd`. Only async-signal-safe calls: other threads
// of the parent may have held locks at the fork.
[[noreturn]] void RunChild(const ChildPlan& plan) {
  const auto fail = [&] {
    const int error = errno;
    ssize_t ignored = write(plan.error_fd, &error, sizeof(error));
    (void)ignored;
    _exit(127);
  };
  if (setpgid(0, plan.group) != 0) fail();
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail();
  // The parent may have died before the prctl.
  if (getppid() != plan.parent) _exit(127);
  if (plan.cpus != nullptr &&
      sched_setaffinity(0, plan.cpus_bytes, plan.cpus) != 0) {
    fail();
  }
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action = {};
    action.sa_handler =
        sigismember(&plan.ignored, signal) == 1 ? SIG_IGN : SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int empty = open("/dev/null", O_RDONLY);
  if (empty < 0 || dup2(empty, 0) < 0 || dup2(plan.stdout_fd, 1) < 0 ||
      dup2(plan.stderr_fd, 2) < 0) {
    fail();
  }
  close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  execve(plan.path, plan.argv, plan.envp);
  fail();
  _exit(127);
}

// A CPU set for sched_setaffinity.
class CpuSet {
 public:
  explicit CpuSet(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    const size_t count =
        static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
    set_ = CPU_ALLOC(count);
    bytes_ = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(bytes_, set_);
    for (const int cpu : cpus) {
      CPU_SET_S(static_cast<size_t>(cpu), bytes_, set_);
    }
  }
  ~CpuSet() {
    if (set_ != nullptr) CPU_FREE(set_);
  }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  const cpu_set_t* get() const { return set_; }
  size_t bytes() const { return bytes_; }

 private:
  cpu_set_t* set_ = nullptr;
  size_t bytes_ = 0;
};

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Returns this process's children, including adopted ones.
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return children;
  while (const dirent* const task = readdir(tasks)) {
    std::ifstream file(
        absl::StrCat("/proc/self/task/", task->d_name, "/children"));
    for (pid_t pid = 0; file >> pid;) children.push_back(pid);
  }
  closedir(tasks);
  return children;
}

// Whether `pid` was started with `variable` in its environment.
bool WasStartedWith(pid_t pid, const std::string& variable) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
  for (std::string each; std::getline(file, each, '\0');) {
    if (each == variable) return true;
  }
  return false;
}

}  // namespace

ProcessGroup::ProcessGroup(pid_t guard, int guard_pipe)
    : guard_(guard), guard_pipe_(guard_pipe) {}

ProcessGroup::ProcessGroup(ProcessGroup&& other) noexcept
    : guard_(std::exchange(other.guard_, -1)),
      guard_pipe_(std::exchange(other.guard_pipe_, -1)) {}

StatusOr<ProcessGroup> ProcessGroup::Create(const std::string& scratch) {
  // Processes that a rank leaves behind become children of this process, which
  // finds them at the end of the job even if they left the group.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoError(StatusCode::kResourceExhausted, "cannot make a pipe",
                      errno);
  }
  // Not fork(): see Spawn.
  const pid_t guard = _Fork();
  if (guard < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    return ErrnoError(StatusCode::kResourceExhausted, "cannot start a process",
                      error);
  }
  if (guard == 0) Guard(ends[0], scratch.c_str());
  close(ends[0]);
  // Both processes call setpgid, so that the group exists in time for the
  // ranks.
  setpgid(guard, guard);
  return ProcessGroup(guard, ends[1]);
}

ProcessGroup::~ProcessGroup() { KillAll(); }

void ProcessGroup::KillAll() {
  if (guard_ < 0) return;
  Signal(SIGKILL);
  KillChildren([](pid_t) { return true; });
  close(guard_pipe_);
  // The id may belong to another process from now on.
  guard_ = -1;
}

StatusOr<pid_t> ProcessGroup::Spawn(const Program& program) {
  std::vector<std::string> arguments = program.arguments;
  std::vector<std::string> environment;
  for (const auto& [name, value] : program.environment) {
    environment.push_back(absl::StrCat(name, "=", value));
  }
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoError(StatusCode::kResourceExhausted, "cannot make a pipe",
                      errno);
  }
  const CpuSet cpus(program.cpus);
  sigset_t ignored;
  sigemptyset(&ignored);
  for (const int signal : program.ignored_signals) sigaddset(&ignored, signal);
  const ChildPlan plan = {.path = program.path.c_str(),
                          .argv = argv.data(),
                          .envp = envp.data(),
                          .stdout_fd = program.stdout_fd,
                          .stderr_fd = program.stderr_fd,
                          .error_fd = ends[1],
                          .group = guard_,
                          .parent = getpid(),
                          .ignored = ignored,
                          .cpus = cpus.get(),
                          .cpus_bytes = cpus.bytes()};
  // Not fork(), which would run handlers of libraries (gRPC).
  const pid_t pid = _Fork();
  if (pid == 0) RunChild(plan);
  const int fork_error = errno;
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return ErrnoError(StatusCode::kResourceExhausted, "cannot start a process",
                      fork_error);
  }
  // Ends when execve closes the other end, or with the child's errno.
  int error = 0;
  ssize_t count;
  do {
    count = read(ends[0], &error, sizeof(error));
  } while (count < 0 && errno == EINTR);
  close(ends[0]);
  if (count == 0) return pid;
  waitpid(pid, nullptr, 0);
  return ErrnoError(StatusCode::kPermissionDenied,
                    absl::StrCat("cannot execute ", base::Quote(program.path)),
                    error);
}

void ProcessGroup::Signal(int signal) const {
  if (guard_ > 0) kill(-guard_, signal);
}

void ProcessGroup::ReapOrphans(const std::vector<pid_t>& ranks) const {
  for (const pid_t pid : Children()) {
    if (pid == guard_ ||
        std::find(ranks.begin(), ranks.end(), pid) != ranks.end()) {
      continue;
    }
    waitpid(pid, nullptr, WNOHANG);
  }
}

void ProcessGroup::KillOrphans(const std::string& variable) const {
  KillChildren([&](pid_t pid) {
    return pid != guard_ && WasStartedWith(pid, variable);
  });
}

void ProcessGroup::KillChildren(const std::function<bool(pid_t)>& is_meant) {
  // The children of a killed process become this process's: repeats until there
  // are none. A process that hangs in the kernel is left to init.
  const auto deadline = std::chrono::steady_clock::now() + kKillTime;
  std::set<pid_t> killed;
  while (std::chrono::steady_clock::now() < deadline) {
    bool some = false;
    for (const pid_t pid : Children()) {
      // A killed process may have no environment any more.
      if (killed.count(pid) == 0 && !is_meant(pid)) continue;
      some = true;
      killed.insert(pid);
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, WNOHANG);
    }
    if (!some) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

StatusOr<std::string> FindProgram(const std::string& name,
                                  const std::string& search_path) {
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.push_back(name);
  } else {
    for (const absl::string_view folder : absl::StrSplit(search_path, ':')) {
      candidates.push_back(
          absl::StrCat(folder.empty() ? "." : folder, "/", name));
    }
  }
  bool found = false;
  for (const std::string& candidate : candidates) {
    struct stat entry;
    if (stat(candidate.c_str(), &entry) != 0) continue;
    if (S_ISREG(entry.st_mode) && access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
    found = true;
  }
  if (found) {
    return PermissionDeniedError(absl::StrCat("program ", base::Quote(name),
                                              " is not an executable file"));
  }
  return NotFoundError(absl::StrCat(
      "program ", base::Quote(name), " not found",
      candidates.size() == 1 ? "" : absl::StrCat(" in PATH=", search_path)));
}

}  // namespace muster::worker
