#include "worker/launcher/attempt.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "client/control/endpoint.h"
#include "client/control/error_file.h"
#include "client/control/exit_status.h"
#include "muster/base/status.h"
#include "worker/launcher/log_runs.h"
#include "worker/launcher/numa.h"
#include "worker/launcher/process_state.h"
#include "worker/launcher/scratch_folder.h"

namespace muster::worker {
namespace {

using Clock = std::chrono::steady_clock;

// After SIGKILL a process ends at once, unless it hangs in the kernel.
constexpr std::chrono::seconds kKillTime(10);

}  // namespace

void Say(const std::string& text) {
  const std::string line =
      absl::StrCat("muster-run: ", base::PrintableLines(text), "\n");
  const ssize_t ignored = write(STDERR_FILENO, line.data(), line.size());
  (void)ignored;
}

namespace {

// Whether a write to standard error would not block.
bool CanSay() {
  pollfd errors = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&errors, 1, 0) == 1 && (errors.revents & POLLOUT) != 0;
}

// Tokens of epoll events. Ranks have their index.
constexpr uint64_t kSignalToken = ~uint64_t{0};
constexpr uint64_t kOutputToken = kSignalToken - 1;
constexpr uint64_t kWakeToken = kSignalToken - 2;

std::string Seconds(std::chrono::duration<double> duration) {
  return absl::StrFormat("%.1fs", duration.count());
}

std::vector<int> GetRanks(const std::vector<internal::Culprit>& culprits) {
  std::vector<int> ranks;
  for (const internal::Culprit& culprit : culprits) {
    ranks.push_back(culprit.rank);
  }
  return ranks;
}

}  // namespace

Attempt::Attempt(const Setting& setting, const Assignment& assignment)
    : setting_(setting),
      options_(setting.options),
      assignment_(assignment),
      late_ranks_(setting.options.hang_timeout) {}

Attempt::~Attempt() {
  for (const Rank& rank : ranks_) {
    if (rank.pidfd >= 0) close(rank.pidfd);
  }
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

void Attempt::Watch(int fd, uint64_t token) const {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = token;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

std::string Attempt::GetFolder(const Rank& rank) const {
  const std::string& job = setting_.coordinator.job;
  return absl::StrCat(
      scratch_.has_value()
          ? LogRunFolder(scratch_->path(), job, 1)
          : LogRunFolder(options_.log_dir, job, assignment_.log_run),
      "/", AttemptFolder(assignment_.restarts + rank.restarts), "/", rank.rank,
      "/");
}

StatusOr<std::string> Attempt::MakeFolder(const Rank& rank) const {
  const std::string folder = GetFolder(rank);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) {
    std::filesystem::remove(folder + "error.json", error);
    return folder;
  }
  return FailedPreconditionError(absl::StrCat(
      "cannot make the folder \"", folder,
      options_.log_dir.empty() ? "\": " : "\" (--log-dir): ", error.message()));
}

Status Attempt::StartRank(Rank& rank) {
  const int local_rank = LocalRank(rank.rank);
  const StatusOr<std::string> folder = MakeFolder(rank);
  if (!folder.ok()) return folder.status();
  rank.error_file = *folder + "error.json";
  const std::string prefix = absl::StrCat("[", rank.rank, "]: ");
  const std::vector<int>& filter = options_.local_ranks_filter;
  const bool shown =
      filter.empty() ||
      std::binary_search(filter.begin(), filter.end(), local_rank);
  // Returns the descriptor to write to.
  const auto add = [&](int sink, const char* name, bool redirected, bool teed) {
    return output_.Add(prefix, shown && (!redirected || teed) ? sink : -1,
                       redirected || teed ? *folder + name : "");
  };
  StatusOr<int> out =
      add(STDOUT_FILENO, "stdout.log", options_.redirects.HasOut(local_rank),
          options_.tee.HasOut(local_rank));
  if (!out.ok()) return out.status();
  StatusOr<int> err =
      add(STDERR_FILENO, "stderr.log", options_.redirects.HasErr(local_rank),
          options_.tee.HasErr(local_rank));
  if (!err.ok()) {
    close(*out);
    return err.status();
  }
  rank.error_stream = output_.size() - 1;
  Assignment assignment = assignment_;
  assignment.restarts += rank.restarts;
  std::vector<std::string> arguments = options_.command;
  if (!options_.use_env) {
    arguments.push_back(absl::StrCat("--local-rank=", local_rank));
  }
  StatusOr<pid_t> pid = group_->Spawn(
      {.path = program_,
       .arguments = std::move(arguments),
       .environment =
           RankEnvironment(options_, assignment, setting_.coordinator,
                           local_rank, rank.error_file, setting_.environment),
       .stdout_fd = *out,
       .stderr_fd = *err,
       .ignored_signals = setting_.signals.ignored,
       .cpus = cpus_.empty() ? std::vector<int>()
                             : cpus_[static_cast<size_t>(local_rank)]});
  close(*out);
  close(*err);
  if (!pid.ok()) return pid.status();
  // glibc's wrapper has no C linkage in C++ (2.36).
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, *pid, 0));
  if (pidfd < 0) {
    return ResourceExhaustedError(
        absl::StrCat("cannot watch a process: ", std::strerror(errno)));
  }
  rank.pid = *pid;
  rank.pidfd = pidfd;
  rank.ended = false;
  rank.hung = false;
  late_ranks_.NoteStart(rank.rank, Clock::now());
  Watch(pidfd, static_cast<uint64_t>(local_rank));
  return OkStatus();
}

Status Attempt::Start() {
  Status status = StartAll();
  if (status.ok()) {
    output_.Start();
  } else if (group_.has_value()) {
    group_->KillAll();
  }
  return status;
}

Status Attempt::StartAll() {
  const auto path = setting_.environment.find("PATH");
  StatusOr<std::string> program = FindProgram(
      options_.command[0],
      path == setting_.environment.end() ? "/usr/bin:/bin" : path->second);
  if (!program.ok()) return program.status();
  program_ = *std::move(program);
  if (options_.log_dir.empty()) {
    StatusOr<ScratchFolder> scratch = ScratchFolder::Create();
    if (!scratch.ok()) return scratch.status();
    scratch_.emplace(*std::move(scratch));
  }
  if (!options_.numa_binding.empty()) {
    auto cpus =
        BindRanks(options_.numa_binding, options_.nproc_per_node,
                  ReadTopology("", AllowedCpus(), setting_.environment));
    if (!cpus.ok()) return cpus.status();
    cpus_ = *std::move(cpus);
  }
  StatusOr<ProcessGroup> group =
      ProcessGroup::Create(scratch_.has_value() ? scratch_->path() : "");
  if (!group.ok()) return group.status();
  group_.emplace(*std::move(group));
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0) {
    return ResourceExhaustedError(
        absl::StrCat("cannot watch processes: ", std::strerror(errno)));
  }
  Watch(setting_.signal_fd, kSignalToken);
  Watch(output_.done_fd(), kOutputToken);
  if (setting_.wake_fd >= 0) Watch(setting_.wake_fd, kWakeToken);
  ranks_.resize(static_cast<size_t>(options_.nproc_per_node));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].rank = assignment_.first_rank + static_cast<int>(i);
  }
  for (Rank& rank : ranks_) {
    Status status = StartRank(rank);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

bool Attempt::AllEnded() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.ended; });
}

std::vector<int> Attempt::Running() const {
  std::vector<int> running;
  for (const Rank& rank : ranks_) {
    if (!rank.ended) running.push_back(rank.rank);
  }
  return running;
}

int Attempt::TimeoutMs() const {
  if (!deadline_.has_value()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

void Attempt::Fail() {
  phase_ = Phase::kFailing;
  deadline_ = Clock::now() + options_.failure_grace;
}

void Attempt::Stop(int signal) {
  phase_ = Phase::kStopping;
  deadline_ = Clock::now() + options_.stop_grace;
  group_->Signal(signal);
}

void Attempt::Kill() {
  phase_ = Phase::kKilling;
  deadline_ = Clock::now() + kKillTime;
  group_->Signal(SIGKILL);
}

void Attempt::Interrupt(const std::string& reason, bool soon) {
  if (phase_ != Phase::kRunning) return;
  interrupted_ = true;
  Say(reason);
  if (soon) {
    Stop(SIGTERM);
  } else {
    Fail();
  }
}

void Attempt::KillHung(pid_t pid, const std::string& fate,
                       const std::string& cause) {
  if (phase_ != Phase::kRunning && phase_ != Phase::kFailing) return;
  for (Rank& rank : ranks_) {
    if (rank.pid != pid || rank.ended || std::exchange(rank.hung, true)) {
      continue;
    }
    Say(absl::StrCat("rank ", rank.rank, " (pid ", pid, ") ", fate,
                     ", killing it: ", cause));
    rank.hang_cause = cause;
    kill(pid, SIGKILL);
  }
}

void Attempt::NoteMissing(const std::vector<int>& missing, int joined) {
  if (phase_ != Phase::kRunning) return;
  std::vector<int> running;
  const auto rank_of = [this](int rank) -> Rank& {
    return ranks_[static_cast<size_t>(LocalRank(rank))];
  };
  std::ranges::copy_if(missing, std::back_inserter(running),
                       [&](int rank) { return !rank_of(rank).ended; });
  const std::string others =
      absl::StrCat(joined, joined == 1 ? " rank has" : " ranks have",
                   " waited in the rendezvous of ", assignment_.world_size);
  const LateRanks::Decision decision =
      late_ranks_.Decide(running, Clock::now());
  if (!decision.tell.empty()) {
    std::string who;
    for (size_t i = 0;
         i < std::min(decision.tell.size(), base::kRanksInTextMax); ++i) {
      const Rank& rank = rank_of(decision.tell[i].rank);
      absl::StrAppend(&who, i == 0 ? "" : ", ", "rank ", rank.rank, " (pid ",
                      rank.pid, ")");
    }
    if (decision.tell.size() > base::kRanksInTextMax) {
      absl::StrAppend(&who, " and ",
                      decision.tell.size() - base::kRanksInTextMax, " more");
    }
    Say(absl::StrCat(others, " for ", Seconds(decision.tell[0].waited),
                     "; not joined on this host: ", who));
  }
  for (const LateRanks::Late& late : decision.kill) {
    Rank& rank = rank_of(late.rank);
    const std::string state = DescribeProcessState(rank.pid);
    KillHung(rank.pid, "hangs",
             absl::StrCat(others, " for ", Seconds(late.waited),
                          ", and it has not joined", state.empty() ? "" : "; ",
                          state));
  }
}

void Attempt::NoteThatNoneCame() {
  if (phase_ != Phase::kRunning ||
      !late_ranks_.TellThatNoneCame(Clock::now())) {
    return;
  }
  Say("no rank of this host has come to the coordinator yet; --hang-timeout "
      "counts from when others wait for a rank");
}

// Sends to the ranks only: their children would end by default.
void Attempt::PassOn(int signal) const {
  Say(absl::StrCat("passing ", internal::SignalName(signal),
                   " on to the ranks"));
  for (const Rank& rank : ranks_) {
    if (!rank.ended) kill(rank.pid, signal);
  }
}

void Attempt::OnSignal() {
  signalfd_siginfo info;
  while (read(setting_.signal_fd, &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      std::vector<pid_t> pids;
      for (const Rank& rank : ranks_) pids.push_back(rank.pid);
      group_->ReapOrphans(pids);
      continue;
    }
    if (setting_.signals.Passes(signal)) {
      PassOn(signal);
      continue;
    }
    if (swept_) {
      // Only output is left, and nothing may read it.
      if (CanSay()) {
        Say(absl::StrCat("stopped by ", internal::SignalName(signal)));
      }
      std::_Exit(128 + signal);
    }
    if (stop_signal_ == 0 && phase_ == Phase::kRunning) {
      stop_signal_ = signal;
      Say(absl::StrCat(
          "got ", internal::SignalName(signal), ", passing it on; ranks have ",
          Seconds(options_.stop_grace), " to end (once more kills them now)"));
      Stop(signal);
    } else if (phase_ == Phase::kFailing) {
      stop_signal_ = signal;
      Stop(signal);
    } else {
      Say(absl::StrCat("got ", internal::SignalName(signal),
                       ", killing all ranks"));
      Kill();
    }
  }
}

void Attempt::OnRankEnd(Rank& rank) {
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED) != 0) return;
  rank.ended = true;
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, rank.pidfd, nullptr);
  internal::ExitStatus status;
  if (info.si_code == CLD_EXITED) {
    status.code = info.si_status;
  } else {
    status.signal = info.si_status;
    status.core_dumped = info.si_code == CLD_DUMPED;
  }
  close(rank.pidfd);
  rank.pidfd = -1;
  RankExit exit = {.rank = rank.rank,
                   .pid = rank.pid,
                   .status = status,
                   .told_to_stop = phase_ == Phase::kStopping ||
                                   phase_ == Phase::kKilling || interrupted_,
                   .hung = rank.hung,
                   .hang_cause = rank.hang_cause,
                   .error_file = rank.error_file,
                   .error_stream = rank.error_stream};
  if (IsWitness(exit)) {
    exit.blames = internal::ReadErrorFileCulprits(rank.error_file);
  }
  exit.restarted =
      !status.ok() && phase_ == Phase::kRunning && RestartRank(rank, status);
  exits_.push_back(exit);
  if (exit.restarted) return;
  // A process that the rank has started may hang.
  if (rank.hung) KillOrphans(rank);
  const bool lasts = options_.restart == LaunchOptions::Restart::kNone;
  if (!status.ok() && phase_ == Phase::kRunning) {
    Say(absl::StrCat("rank ", rank.rank, " (pid ", rank.pid, ") ",
                     Describe(status),
                     lasts && !AllEnded() ? "; the others go on" : ""));
    if (!lasts) Fail();
  }
  // Ranks that wait for it in the rendezvous would wait until they are told to
  // stop.
  if (!exits_.back().told_to_stop && setting_.on_gone) {
    setting_.on_gone(exits_.back());
  }
}

void Attempt::KillOrphans(const Rank& rank) const {
  group_->KillOrphans(absl::StrCat(kErrorFileVariable, "=", rank.error_file));
}

// Implements --restart=rank.
bool Attempt::RestartRank(Rank& rank, const internal::ExitStatus& status) {
  int restarts = 0;
  for (const Rank& each : ranks_) restarts += each.restarts;
  if (options_.restart != LaunchOptions::Restart::kRank ||
      restarts >= options_.max_restarts) {
    return false;
  }
  Say(absl::StrCat("rank ", rank.rank, " (pid ", rank.pid, ") ",
                   Describe(status), "; starting it again, restart ",
                   restarts + 1, " of ", options_.max_restarts));
  // Processes that it started must not disturb its replacement.
  KillOrphans(rank);
  ++rank.restarts;
  const Status started = StartRank(rank);
  if (started.ok()) return true;
  rank.ended = true;
  Say(started.message());
  return false;
}

void Attempt::OnDeadline() {
  switch (phase_) {
    case Phase::kRunning:
      break;
    case Phase::kFailing:
      Say("sending SIGTERM to the other ranks");
      Stop(SIGTERM);
      break;
    case Phase::kStopping:
      Say(absl::StrCat(base::RanksText(Running()),
                       Running().size() == 1 ? " still runs " : " still run ",
                       Seconds(options_.stop_grace),
                       " after being told to stop, killing"));
      Kill();
      break;
    case Phase::kKilling:
      for (Rank& rank : ranks_) {
        if (rank.ended) continue;
        Say(absl::StrCat("rank ", rank.rank, " (pid ", rank.pid,
                         ") does not end after SIGKILL; leaving it"));
        exits_.push_back({.rank = rank.rank,
                          .pid = rank.pid,
                          .status = {.signal = SIGKILL},
                          .told_to_stop = true,
                          .error_file = rank.error_file,
                          .error_stream = rank.error_stream});
        rank.ended = true;
      }
      break;
  }
}

void Attempt::HandleEvents() {
  epoll_event events[64];
  const int count = epoll_wait(epoll_fd_, events, 64, TimeoutMs());
  // epoll returns the events in their order, which shows which of several ranks
  // has ended first.
  for (int i = 0; i < count; ++i) {
    const uint64_t token = events[i].data.u64;
    if (token == kOutputToken) {
      output_done_ = true;
      epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, output_.done_fd(), nullptr);
    } else if (token == kSignalToken) {
      OnSignal();
    } else if (token == kWakeToken) {
      uint64_t ignored = 0;
      if (read(setting_.wake_fd, &ignored, sizeof(ignored)) > 0) {
        setting_.on_wake();
      }
    } else {
      OnRankEnd(ranks_[token]);
    }
  }
  if (deadline_.has_value() && Clock::now() >= *deadline_) OnDeadline();
}

AttemptResult Attempt::Supervise() {
  while (!AllEnded()) HandleEvents();
  // Processes that the ranks left behind keep the pipes open. Kills them, which
  // ends the output.
  deadline_.reset();
  group_->KillAll();
  swept_ = true;
  output_.Finish();
  while (!output_done_) HandleEvents();
  output_.Join();
  return Report();
}

AttemptResult Attempt::Report(
    const std::vector<internal::Culprit>& elsewhere) const {
  AttemptResult result;
  result.signal = stop_signal_;
  std::vector<int> killed;
  for (const RankExit& exit : exits_) {
    if (exit.told_to_stop && exit.status.signal == SIGKILL) {
      killed.push_back(exit.rank);
    }
  }
  std::sort(killed.begin(), killed.end());
  if (!killed.empty()) result.killed = base::RanksText(killed);
  const size_t first = FirstFailure(exits_, elsewhere);
  const bool failed =
      first < exits_.size() &&
      (!exits_[first].told_to_stop || IsBlamed(exits_, first, elsewhere));
  result.interrupted = interrupted_ && !failed;
  bool some_succeeded = false;
  for (size_t i = 0; i < exits_.size(); ++i) {
    some_succeeded |= exits_[i].status.ok() && !exits_[i].told_to_stop &&
                      !IsDeserter(exits_, i, elsewhere);
  }
  if (first == exits_.size() ||
      (options_.restart == LaunchOptions::Restart::kNone && some_succeeded)) {
    result.succeeded = !interrupted_ && stop_signal_ == 0;
    return result;
  }
  // The exit statuses of ranks that were told to stop for another reason do not
  // matter.
  if (!failed && (stop_signal_ != 0 || interrupted_)) return result;
  const internal::ExitStatus& status = exits_[first].status;
  result.status = status.ok() ? 1 : status.shell_status();
  result.lost_peer = IsWitness(exits_[first]);
  result.failure = DescribeFailure(first);
  if (result.lost_peer) {
    result.blamed =
        BlamedBeside(exits_, assignment_.first_rank, options_.nproc_per_node);
    if (!result.blamed.empty()) {
      result.failure = absl::StrCat("on another host, in ",
                                    base::RanksText(GetRanks(result.blamed)),
                                    "; here ", result.failure);
    }
  }
  return result;
}

std::string Attempt::DescribeFailure(size_t first) const {
  const RankExit& failure = exits_[first];
  std::string text = absl::StrCat(
      "rank ", failure.rank, " (local rank ", LocalRank(failure.rank), ", pid ",
      failure.pid, ") on host ", internal::HostName(), " ",
      failure.told_to_stop || failure.hung ? "hung until it " : "",
      failure.status.ok() && !failure.told_to_stop
          ? "ended with status 0 before the others were done"
          : Describe(failure.status));
  const std::string message = internal::ReadErrorFile(failure.error_file);
  if (!message.empty()) absl::StrAppend(&text, ": ", message);
  const std::string others = DescribeOthers(exits_, first);
  if (!others.empty()) absl::StrAppend(&text, "\n  then: ", others);
  if (failure.hung) {
    absl::StrAppend(&text, "\n  why it was killed: ", failure.hang_cause);
  }
  const std::deque<std::string>& tail = output_.tail(failure.error_stream);
  absl::StrAppend(&text, tail.empty()
                             ? "\n  it printed nothing on standard error"
                             : "\n  its last lines on standard error:");
  for (const std::string& line : tail) {
    absl::StrAppend(&text, "\n    ", line);
  }
  const size_t witness = FirstWitness(exits_);
  if (witness < exits_.size() && witness != first) {
    const std::deque<std::string>& seen =
        output_.tail(exits_[witness].error_stream);
    if (!seen.empty()) {
      absl::StrAppend(&text, "\n  rank ", exits_[witness].rank,
                      " saw: ", seen.back());
    }
  }
  return text;
}

}  // namespace muster::worker
