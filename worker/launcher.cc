#include "worker/launcher.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/failure.h"
#include "worker/output_pump.h"

namespace muster::worker {
namespace {

using Clock = std::chrono::steady_clock;

// After SIGKILL a process ends at once, unless the kernel holds it.
constexpr std::chrono::seconds kKillTime(10);

// One write, so that the line does not mix with a rank's.
void Say(const std::string& text) {
  const std::string line = absl::StrCat("muster-run: ", text, "\n");
  const ssize_t ignored = write(STDERR_FILENO, line.data(), line.size());
  (void)ignored;
}

std::string HostName() {
  char name[256] = "unknown";
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string Seconds(std::chrono::milliseconds duration) {
  return absl::StrFormat("%.1fs",
                         static_cast<double>(duration.count()) / 1000.0);
}

struct Rank {
  int rank = 0;
  pid_t pid = 0;
  int pidfd = -1;
  bool ended = false;
};

// One run of the ranks of this host.
class Run {
 public:
  Run(const LaunchOptions& options, ProcessGroup& group)
      : options_(options), group_(group) {}
  ~Run();

  // Starts every rank. On an error those that have started still run.
  absl::Status Start(const CoordinatorAddress& coordinator,
                     const Environment& environment);

  // Until every rank has ended and all output is printed. Returns the exit
  // status.
  int Supervise();

 private:
  // What is happening; each phase but the first has a deadline.
  enum class Phase { kRunning, kFailing, kStopping, kKilling };

  absl::Status StartRank(int local_rank, const std::string& program,
                         const CoordinatorAddress& coordinator,
                         const Environment& environment);
  absl::StatusOr<std::string> MakeLogFolder(int rank, const std::string& job);
  void Watch(int fd, uint64_t token) const;
  // Waits for events or the deadline, and handles them.
  void HandleEvents();
  void OnSignal();
  void OnRankEnd(Rank& rank);
  void OnDeadline();
  void Stop(int signal);
  void Kill();
  bool AllEnded() const;
  int TimeoutMs() const;
  int Report() const;
  int FirstRank() const { return options_.node_rank * options_.nproc_per_node; }
  // The last lines that `rank` printed on standard error.
  const std::deque<std::string>& ErrorTail(int rank) const {
    // Streams were added as stdout, stderr of each rank in turn.
    return output_.tail(static_cast<size_t>(rank - FirstRank()) * 2 + 1);
  }

  const LaunchOptions& options_;
  ProcessGroup& group_;
  OutputPump output_;
  std::vector<Rank> ranks_;
  const Clock::time_point start_ = Clock::now();
  int epoll_fd_ = -1;
  int signal_fd_ = -1;
  Phase phase_ = Phase::kRunning;
  std::optional<Clock::time_point> deadline_;
  // The signal that told us to stop; 0: none did.
  int stop_signal_ = 0;
  std::vector<RankExit> exits_;
  bool swept_ = false;
  bool output_done_ = false;
};

// Tokens of what epoll watches; ranks are their index.
constexpr uint64_t kSignalToken = ~uint64_t{0};
constexpr uint64_t kOutputToken = kSignalToken - 1;

Run::~Run() {
  for (const Rank& rank : ranks_) close(rank.pidfd);
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (signal_fd_ >= 0) close(signal_fd_);
}

void Run::Watch(int fd, uint64_t token) const {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = token;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

absl::StatusOr<std::string> Run::MakeLogFolder(int rank,
                                               const std::string& job) {
  if (options_.log_dir.empty()) return std::string();
  const std::string folder =
      absl::StrCat(options_.log_dir, "/", job, "/", rank);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make the folder \"", folder,
                     "\" (--log-dir): ", error.message()));
  }
  return folder + "/";
}

absl::Status Run::StartRank(int local_rank, const std::string& program,
                            const CoordinatorAddress& coordinator,
                            const Environment& environment) {
  const int rank = FirstRank() + local_rank;
  absl::StatusOr<std::string> logs = MakeLogFolder(rank, coordinator.job);
  if (!logs.ok()) return logs.status();
  const std::string prefix = absl::StrCat("[", rank, "]: ");
  const auto log = [&](const char* name) {
    return logs->empty() ? std::string() : *logs + name;
  };
  absl::StatusOr<int> out =
      output_.Add(prefix, STDOUT_FILENO, log("stdout.log"));
  if (!out.ok()) return out.status();
  absl::StatusOr<int> err =
      output_.Add(prefix, STDERR_FILENO, log("stderr.log"));
  if (!err.ok()) {
    close(*out);
    return err.status();
  }
  absl::StatusOr<pid_t> pid =
      group_.Spawn({.path = program,
                    .arguments = options_.command,
                    .environment = RankEnvironment(options_, coordinator,
                                                   local_rank, environment),
                    .stdout_fd = *out,
                    .stderr_fd = *err});
  close(*out);
  close(*err);
  if (!pid.ok()) return pid.status();
  // glibc's wrapper has no C linkage in C++ (2.36).
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, *pid, 0));
  if (pidfd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot watch a process: ", std::strerror(errno)));
  }
  ranks_.push_back({.rank = rank, .pid = *pid, .pidfd = pidfd});
  return absl::OkStatus();
}

absl::Status Run::Start(const CoordinatorAddress& coordinator,
                        const Environment& environment) {
  const auto path = environment.find("PATH");
  absl::StatusOr<std::string> program =
      FindProgram(options_.command[0],
                  path == environment.end() ? "/usr/bin:/bin" : path->second);
  if (!program.ok()) return program.status();
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) {
    sigaddset(&signals, signal);
  }
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (epoll_fd_ < 0 || signal_fd_ < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot watch signals: ", std::strerror(errno)));
  }
  Watch(signal_fd_, kSignalToken);
  Watch(output_.done_fd(), kOutputToken);
  for (int i = 0; i < options_.nproc_per_node; ++i) {
    absl::Status status = StartRank(i, *program, coordinator, environment);
    if (!status.ok()) return status;
    Watch(ranks_.back().pidfd, static_cast<uint64_t>(i));
  }
  output_.Start();
  return absl::OkStatus();
}

bool Run::AllEnded() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.ended; });
}

int Run::TimeoutMs() const {
  if (!deadline_.has_value()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

void Run::Stop(int signal) {
  phase_ = Phase::kStopping;
  deadline_ = Clock::now() + options_.stop_grace;
  group_.Signal(signal);
}

void Run::Kill() {
  phase_ = Phase::kKilling;
  deadline_ = Clock::now() + kKillTime;
  group_.Signal(SIGKILL);
}

void Run::OnSignal() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      std::vector<pid_t> pids;
      for (const Rank& rank : ranks_) pids.push_back(rank.pid);
      group_.ReapOrphans(pids);
      continue;
    }
    if (swept_) {
      // Only the output is left, and nobody reads it.
      std::_Exit(128 + signal);
    }
    if (stop_signal_ == 0 && phase_ == Phase::kRunning) {
      stop_signal_ = signal;
      Say(absl::StrCat(
          "got ", SignalName(signal), ", passing it on; ranks have ",
          Seconds(options_.stop_grace), " to end (once more kills them now)"));
      Stop(signal);
    } else if (phase_ == Phase::kFailing) {
      stop_signal_ = signal;
      Stop(signal);
    } else {
      Say(absl::StrCat("got ", SignalName(signal), ", killing all ranks"));
      Kill();
    }
  }
}

void Run::OnRankEnd(Rank& rank) {
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED) != 0) return;
  rank.ended = true;
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, rank.pidfd, nullptr);
  ExitStatus status;
  if (info.si_code == CLD_EXITED) {
    status.code = info.si_status;
  } else {
    status.signal = info.si_status;
    status.core_dumped = info.si_code == CLD_DUMPED;
  }
  const bool told = phase_ == Phase::kStopping || phase_ == Phase::kKilling;
  exits_.push_back({rank.rank, rank.pid, status, told});
  if (!status.ok() && phase_ == Phase::kRunning) {
    phase_ = Phase::kFailing;
    deadline_ = Clock::now() + options_.failure_grace;
    Say(absl::StrCat("rank ", rank.rank, " (pid ", rank.pid, ") ",
                     Describe(status)));
  }
}

void Run::OnDeadline() {
  switch (phase_) {
    case Phase::kRunning:
      break;
    case Phase::kFailing:
      Say("sending SIGTERM to the other ranks");
      Stop(SIGTERM);
      break;
    case Phase::kStopping:
      Say(absl::StrCat("ranks still run ", Seconds(options_.stop_grace),
                       " after they were told to stop, killing them"));
      Kill();
      break;
    case Phase::kKilling:
      for (Rank& rank : ranks_) {
        if (rank.ended) continue;
        Say(absl::StrCat("rank ", rank.rank, " (pid ", rank.pid,
                         ") does not end after SIGKILL; leaving it"));
        exits_.push_back({rank.rank, rank.pid, {.signal = SIGKILL}, true});
        rank.ended = true;
      }
      break;
  }
}

void Run::HandleEvents() {
  epoll_event events[64];
  const int count = epoll_wait(epoll_fd_, events, 64, TimeoutMs());
  // In the order in which things happened: epoll keeps it, which is how the
  // first rank to end is known among several.
  for (int i = 0; i < count; ++i) {
    const uint64_t token = events[i].data.u64;
    if (token == kOutputToken) {
      output_done_ = true;
      epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, output_.done_fd(), nullptr);
    } else if (token == kSignalToken) {
      OnSignal();
    } else {
      OnRankEnd(ranks_[token]);
    }
  }
  if (deadline_.has_value() && Clock::now() >= *deadline_) OnDeadline();
}

int Run::Supervise() {
  while (!AllEnded()) HandleEvents();
  // What the ranks left running holds their pipes open; then the output ends.
  deadline_.reset();
  group_.KillAll();
  swept_ = true;
  while (!output_done_) HandleEvents();
  output_.Join();
  return Report();
}

int Run::Report() const {
  const size_t first = FirstFailure(exits_);
  if (stop_signal_ != 0 &&
      (first == exits_.size() || exits_[first].told_to_stop)) {
    Say(absl::StrCat(
        "stopped by ", SignalName(stop_signal_), " after ",
        Seconds(std::chrono::duration_cast<std::chrono::milliseconds>(
            Clock::now() - start_))));
    return 128 + stop_signal_;
  }
  if (first == exits_.size()) return 0;
  const RankExit& failure = exits_[first];
  std::string text = absl::StrCat(
      "first failure: rank ", failure.rank, " (local rank ",
      failure.rank - FirstRank(), ", pid ", failure.pid, ") on host ",
      HostName(), " ", failure.told_to_stop ? "hung until it " : "",
      Describe(failure.status));
  const std::string others = DescribeOthers(exits_, first);
  if (!others.empty()) absl::StrAppend(&text, "\n  then: ", others);
  const std::deque<std::string>& tail = ErrorTail(failure.rank);
  absl::StrAppend(&text, tail.empty()
                             ? "\n  it printed nothing on standard error"
                             : "\n  its last lines on standard error:");
  for (const std::string& line : tail) {
    absl::StrAppend(&text, "\n    ", line);
  }
  const size_t witness = FirstWitness(exits_);
  if (witness < exits_.size() && witness != first) {
    const std::deque<std::string>& seen = ErrorTail(exits_[witness].rank);
    if (!seen.empty()) {
      absl::StrAppend(&text, "\n  rank ", exits_[witness].rank,
                      " saw: ", seen.back());
    }
  }
  Say(text);
  return failure.status.shell_status();
}

}  // namespace

int Launch(const LaunchOptions& options, const CoordinatorAddress& coordinator,
           const Environment& environment, ProcessGroup& group) {
  Run run(options, group);
  const absl::Status status = run.Start(coordinator, environment);
  if (status.ok()) return run.Supervise();
  group.KillAll();
  Say(std::string(status.message()));
  if (absl::IsNotFound(status)) return 127;
  return absl::IsPermissionDenied(status) ? 126 : 1;
}

}  // namespace muster::worker
