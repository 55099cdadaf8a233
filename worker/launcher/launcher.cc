#include "worker/launcher/launcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "client/control/endpoint.h"
#include "client/control/error_file.h"
#include "client/control/exit_status.h"
#include "muster/base/status.h"
#include "worker/launcher/absent_ranks.h"
#include "worker/launcher/attempt.h"
#include "worker/launcher/failure.h"
#include "worker/launcher/hosts.h"
#include "worker/launcher/log_runs.h"
#include "worker/launcher/lost_ranks.h"

namespace muster::worker {
namespace {

using Clock = std::chrono::steady_clock;

class Launcher {
 public:
  Launcher(const LaunchOptions& options, const SignalPlan& signals,
           const CoordinatorAddress& coordinator,
           const Environment& environment);
  ~Launcher();

  int Run();

 private:
  // The first run whose folder has no output of the next attempt.
  int LogRun() const;
  // Reports a change from `before`; `own` is this host's number.
  void TellLogRun(int before, int own) const;
  // Agrees with the other hosts on the next attempt. Not OK: the job is over,
  // or muster-run was told to stop.
  Status Meet();
  // Runs one attempt. Returns nullopt if another one follows, else the exit
  // status.
  std::optional<int> Try();
  std::optional<int> AfterSuccess(const Attempt& attempt);
  // `cut_off`: this host, the only one, may have been declared lost.
  std::optional<int> AfterFailure(const Attempt& attempt,
                                  const AttemptResult& result, bool cut_off);
  // Waits a short time for the coordinator to answer.
  bool WasCutOff(const LostRanks& lost_ranks);
  // Returns what happened to the hosts when this host's ranks ended with
  // `result`. A lost host, maybe this one, ends the ranks of all hosts, which
  // is no failure. The ranks may end before the event arrives.
  StatusOr<std::optional<Hosts::Change>> ChangeAfter(
      const AttemptResult& result);
  // Another host has reported that the job failed. The cause may still be on
  // this host.
  int FailedElsewhere(const Attempt& attempt, const std::string& failure);
  // `killed` is that of AttemptResult.
  int StoppedBySignal(const std::string& killed = "");
  // Stays while ranks of other hosts wait for this host's ranks, which have all
  // ended; `absent_ranks` tells them.
  void StayForOthers(const AbsentRanks& absent_ranks);

  // Runs `call` on a thread until it returns, and meanwhile `on_wait` (may be
  // null) every kTellPause. A signal makes this host leave, which ends `call`.
  void Await(const std::function<void()>& call,
             const std::function<void()>& on_wait = nullptr);
  // Waits until another host's change, a signal, or the timeout.
  std::optional<Hosts::Change> AwaitChange(std::chrono::milliseconds timeout);
  // Handles the pending signals.
  void ReadSignals();
  // Waits for `fd` (-1: none) or a signal. Returns false after `timeout_ms`
  // (-1: never).
  bool Poll(int fd, int timeout_ms);

  const LaunchOptions& options_;
  const SignalPlan& signals_;
  const CoordinatorAddress& coordinator_;
  const Environment& environment_;
  const Clock::time_point start_ = Clock::now();
  int signal_fd_ = -1;
  int wake_fd_ = -1;
  // Null: this is the only host.
  std::unique_ptr<Hosts> hosts_;
  Assignment assignment_;
  Hosts::Report report_;
  // The signal that stopped muster-run; 0: none.
  int signal_ = 0;
};

// After a signal, how long to wait for a coordinator that may be gone.
constexpr std::chrono::milliseconds kLeaveTime(500);
// How often waits are reported.
constexpr std::chrono::seconds kTellPause(10);
constexpr std::chrono::milliseconds kNoTime(0);
constexpr std::chrono::milliseconds kStayPause(200);
// How long to wait for a coordinator that may return after the ranks' end.
constexpr std::chrono::milliseconds kAnswerTime(5000);
// The time from the end of a lease until all know.
constexpr std::chrono::milliseconds kLossTime(1000);

void Wake(int event_fd) {
  const uint64_t one = 1;
  const ssize_t ignored = write(event_fd, &one, sizeof(one));
  (void)ignored;
}

Launcher::Launcher(const LaunchOptions& options, const SignalPlan& signals,
                   const CoordinatorAddress& coordinator,
                   const Environment& environment)
    : options_(options),
      signals_(signals),
      coordinator_(coordinator),
      environment_(environment) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals.stop) sigaddset(&set, signal);
  for (const int signal : signals.pass) sigaddset(&set, signal);
  sigaddset(&set, SIGCHLD);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (options.several_hosts()) {
    hosts_ = std::make_unique<Hosts>(options, coordinator,
                                     [this] { Wake(wake_fd_); });
  } else {
    assignment_.world_size = options.nproc_per_node;
    assignment_.max_restarts = options.max_restarts;
  }
}

Launcher::~Launcher() {
  // First, because its callback uses the descriptor.
  hosts_.reset();
  if (signal_fd_ >= 0) close(signal_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

bool Launcher::Poll(int fd, int timeout_ms) {
  pollfd ready[] = {{signal_fd_, POLLIN, 0}, {fd, POLLIN, 0}};
  return poll(ready, 2, timeout_ms) != 0;
}

void Launcher::ReadSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    // There is no rank to pass a signal to.
    if (signal == SIGCHLD || signals_.Passes(signal)) continue;
    // Nothing that runs needs time to end.
    if (signal_ != 0) std::_Exit(128 + signal);
    signal_ = signal;
  }
}

void Launcher::Await(const std::function<void()>& call,
                     const std::function<void()>& on_wait) {
  const int done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::thread thread([&] {
    call();
    Wake(done_fd);
  });
  uint64_t count = 0;
  bool left = false;
  auto tell_at = Clock::now() + kTellPause;
  while (read(done_fd, &count, sizeof(count)) < 0) {
    const auto pause =
        std::chrono::ceil<std::chrono::milliseconds>(tell_at - Clock::now());
    Poll(done_fd, static_cast<int>(std::max<int64_t>(pause.count(), 0)));
    ReadSignals();
    if (Clock::now() >= tell_at) {
      if (on_wait && signal_ == 0) on_wait();
      tell_at = Clock::now() + kTellPause;
    }
    if (signal_ != 0 && !left) {
      left = true;
      hosts_->Leave(absl::StrCat("stopped by ", internal::SignalName(signal_)),
                    kLeaveTime);
    }
  }
  thread.join();
  close(done_fd);
}

std::optional<Hosts::Change> Launcher::AwaitChange(
    std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  while (signal_ == 0) {
    uint64_t count = 0;
    (void)!read(wake_fd_, &count, sizeof(count));
    std::optional<Hosts::Change> change = hosts_->change();
    if (change.has_value() && !change->joined) return change;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return std::nullopt;
    Poll(wake_fd_, static_cast<int>(left.count()));
    ReadSignals();
  }
  return std::nullopt;
}

int Launcher::StoppedBySignal(const std::string& killed) {
  if (hosts_ != nullptr) {
    hosts_->Leave(absl::StrCat("stopped by ", internal::SignalName(signal_)),
                  kLeaveTime);
  }
  Say(absl::StrFormat(
      "stopped by %s after %.1fs%s", internal::SignalName(signal_),
      std::chrono::duration<double>(Clock::now() - start_).count(),
      killed.empty() ? "" : absl::StrCat("; had to be killed: ", killed)));
  return 128 + signal_;
}

int Launcher::FailedElsewhere(const Attempt& attempt,
                              const std::string& failure) {
  std::vector<internal::Culprit> blamed;
  Await([&] { blamed = hosts_->Blamed(); });
  if (signal_ != 0) return StoppedBySignal();
  const AttemptResult own = attempt.Report(blamed);
  if (!own.failure.empty() && !own.lost_peer) {
    Say(absl::StrCat("first failure: ", own.failure));
    hosts_->Leave("the job failed");
    return own.status;
  }
  Say(absl::StrCat("the job failed on another host; first failure: ", failure));
  hosts_->Leave("the job failed");
  return kExitPeerFailed;
}

int Launcher::LogRun() const {
  if (options_.log_dir.empty()) return assignment_.log_run;
  return FreeLogRun(options_.log_dir, coordinator_.job, assignment_.log_run,
                    report_.restarts);
}

void Launcher::TellLogRun(int before, int own) const {
  const int run = assignment_.log_run;
  if (options_.log_dir.empty() || run == before) return;
  Say(absl::StrCat(
      own == run ? "" : "another host's ",
      "--log-dir has output of an earlier run; that of this one "
      "goes to ",
      base::Quote(LogRunFolder(options_.log_dir, coordinator_.job, run))));
}

Status Launcher::Meet() {
  const int log_run = assignment_.log_run;
  const int own_log_run = report_.log_run = LogRun();
  StatusOr<Hosts::Meeting> meeting = CancelledError("");
  Await([&] { meeting = hosts_->Meet(report_); },
        [&] {
          const std::string missing = hosts_->Missing();
          if (!missing.empty()) {
            Say(absl::StrCat(
                "waiting to begin (the ranks are those of hosts): ", missing));
          }
        });
  if (!meeting.ok()) return meeting.status();
  assignment_ = meeting->assignment;
  report_ = {.restarts = assignment_.restarts};
  if (assignment_.max_restarts < options_.max_restarts) {
    Say(absl::StrCat(
        "another host has --max-restarts=", assignment_.max_restarts,
        ", this one ", options_.max_restarts, ": the lowest counts"));
  }
  Say(absl::StrCat("host ", assignment_.group_rank, " of ",
                   assignment_.group_world_size, ": ranks ",
                   assignment_.first_rank, " to ",
                   assignment_.first_rank + options_.nproc_per_node - 1, " of ",
                   assignment_.world_size,
                   assignment_.restarts == 0
                       ? ""
                       : absl::StrCat(", restart ", assignment_.restarts,
                                      " of ", assignment_.max_restarts),
                   meeting->failure.empty()
                       ? ""
                       : absl::StrCat(" after a failure: ", meeting->failure)));
  TellLogRun(log_run, own_log_run);
  return OkStatus();
}

int Launcher::Run() {
  if (signal_fd_ < 0 || wake_fd_ < 0) {
    Say("cannot watch signals: no descriptor left");
    return 1;
  }
  while (true) {
    if (hosts_ != nullptr) {
      const Status met = Meet();
      if (signal_ != 0) return StoppedBySignal();
      if (!met.ok()) {
        if (!IsOutOfRange(met)) {
          Say(absl::StrFormat(
              "cannot meet the other hosts (--rdzv-conf join_timeout is %gs; "
              "the ranks are those of hosts): %s",
              std::chrono::duration<double>(
                  options_.rendezvous_times.join_timeout)
                  .count(),
              met.message()));
          return 1;
        }
        Say(absl::StrCat("the job is over: ", met.message()));
        return met.GetPayload(kJobFinishedUrl).has_value() ? 0
                                                           : kExitPeerFailed;
      }
    } else {
      const int before = assignment_.log_run;
      assignment_.log_run = LogRun();
      assignment_.attempt = NewAttempt();
      TellLogRun(before, assignment_.log_run);
    }
    if (hosts_ != nullptr &&
        options_.restart == LaunchOptions::Restart::kNone) {
      // From here on the ranks do not need this launcher's membership.
      hosts_->Leave("its ranks have begun");
      hosts_.reset();
    }
    const std::optional<int> status = Try();
    if (status.has_value()) return *status;
  }
}

void Launcher::StayForOthers(const AbsentRanks& absent_ranks) {
  const auto now = Clock::now();
  // Ranks that were started at the same time are about to come.
  const auto coming = now + options_.failure_grace;
  const auto until = now + options_.rendezvous_times.join_timeout;
  while (signal_ == 0 && Clock::now() < until &&
         (Clock::now() < coming || absent_ranks.others_wait())) {
    Poll(-1, static_cast<int>(kStayPause.count()));
    ReadSignals();
  }
}

std::optional<int> Launcher::Try() {
  Attempt* running = nullptr;
  Attempt::Setting setting = {.options = options_,
                              .signals = signals_,
                              .coordinator = coordinator_,
                              .environment = environment_,
                              .signal_fd = signal_fd_};
  // The others end, go on without the lost rank, or wait for its replacement.
  LostRanks lost_ranks(coordinator_,
                       {.first_rank = assignment_.first_rank,
                        .rank_count = options_.nproc_per_node,
                        .world_size = assignment_.world_size},
                       options_.hang_timeout, [this] { Wake(wake_fd_); });
  setting.wake_fd = wake_fd_;
  setting.on_wake = [&] {
    for (const LostRanks::Hung& hung : lost_ranks.Take()) {
      running->KillHung(hung.pid, hung.fate, hung.cause);
    }
    if (const auto rendezvous = lost_ranks.TakeRendezvous()) {
      if (rendezvous->none_came) running->NoteThatNoneCame();
      running->NoteMissing(rendezvous->missing, rendezvous->joined);
    }
    const auto change = hosts_ == nullptr ? std::nullopt : hosts_->change();
    if (!change.has_value()) return;
    running->Interrupt(
        absl::StrCat(
            change->failed ? "the job failed on another host" : change->why,
            change->failed ? "" : "; starting all ranks again"),
        /*soon=*/change->joined);
  };
  // Until the ranks of the other hosts are done, too.
  AbsentRanks absent_ranks(coordinator_, assignment_.world_size);
  setting.on_gone = [&](const RankExit& exit) {
    absent_ranks.Add(exit.rank, exit.pid, Describe(exit.status));
  };
  Attempt attempt(setting, assignment_);
  running = &attempt;
  const Status started = attempt.Start();
  if (!started.ok()) {
    Say(started.message());
    if (hosts_ != nullptr) {
      hosts_->GiveUp(
          absl::StrCat("host ", internal::HostName(), ": ", started.message()));
    }
    if (IsNotFound(started)) return 127;
    return IsPermissionDenied(started) ? 126 : 1;
  }
  // Handles events from before the start.
  Wake(wake_fd_);
  AttemptResult result = attempt.Supervise();
  if (options_.several_hosts() && result.signal == 0 && !result.succeeded &&
      options_.restart == LaunchOptions::Restart::kNone) {
    StayForOthers(absent_ranks);
  }
  if (result.signal != 0 && result.failure.empty()) {
    signal_ = result.signal;
    return StoppedBySignal(result.killed);
  }
  if (result.succeeded) return AfterSuccess(attempt);
  if (result.interrupted) {
    const auto change = hosts_->change();
    if (change.has_value() && change->failed) {
      return FailedElsewhere(attempt, change->why);
    }
    return std::nullopt;
  }
  const bool cut_off = hosts_ == nullptr && WasCutOff(lost_ranks);
  const std::string silence = lost_ranks.DescribeSilence();
  if (!silence.empty()) absl::StrAppend(&result.failure, "\n  ", silence);
  return AfterFailure(attempt, result, cut_off);
}

bool Launcher::WasCutOff(const LostRanks& lost_ranks) {
  const auto until = Clock::now() + kAnswerTime;
  while (signal_ == 0 && Clock::now() < until && lost_ranks.IsOutOfTouch()) {
    Poll(-1, static_cast<int>(kStayPause.count()));
    ReadSignals();
  }
  return lost_ranks.WasCutOff();
}

std::optional<int> Launcher::AfterSuccess(const Attempt& attempt) {
  if (hosts_ == nullptr) return 0;
  Status status;
  Await([&] { status = hosts_->AwaitOthers(); });
  if (signal_ != 0) return StoppedBySignal();
  if (status.ok()) {
    hosts_->Leave("finished");
    return 0;
  }
  const auto change = hosts_->change();
  if (change.has_value() && change->failed) {
    return FailedElsewhere(attempt, change->why);
  }
  Say(absl::StrCat(change.has_value() ? change->why : status.message(),
                   "; starting all ranks again"));
  return std::nullopt;
}

StatusOr<std::optional<Hosts::Change>> Launcher::ChangeAfter(
    const AttemptResult& result) {
  StatusOr<std::chrono::milliseconds> lease = CancelledError("");
  bool told = false;
  Await([&] { lease = hosts_->CatchUp(); },
        [&] {
          if (std::exchange(told, true)) return;
          Say(
              absl::StrCat("the coordinator does not answer; waiting to hear "
                           "whether a host was lost, after: ",
                           result.failure));
        });
  if (!lease.ok()) return lease.status();
  // If the ranks lost a peer, waits for the host with the cause to report it or
  // to be lost.
  return AwaitChange(result.lost_peer
                         ? std::max(options_.failure_grace, *lease + kLossTime)
                         : kNoTime);
}

std::optional<int> Launcher::AfterFailure(const Attempt& attempt,
                                          const AttemptResult& result,
                                          const bool cut_off) {
  const bool last = report_.restarts >= assignment_.max_restarts ||
                    options_.restart != LaunchOptions::Restart::kAll ||
                    result.signal != 0;
  if (hosts_ != nullptr && result.signal == 0) {
    const auto change = ChangeAfter(result);
    if (signal_ != 0) return StoppedBySignal();
    if (!change.ok()) {
      // This host cannot tell the others or meet them again either.
      Say(absl::StrCat("first failure: ", result.failure));
      Say(absl::StrCat("the other hosts cannot be told: ",
                       change.status().message()));
      return result.status;
    }
    if (change->has_value()) {
      const Hosts::Change& what = **change;
      if (what.failed) return FailedElsewhere(attempt, what.why);
      Say(absl::StrCat(what.why, "; starting all ranks again"));
      return std::nullopt;
    }
  }
  Say(absl::StrCat("first failure: ", result.failure));
  if (signal_ != 0) return StoppedBySignal();
  if (cut_off && result.signal == 0 &&
      options_.restart == LaunchOptions::Restart::kAll) {
    Say("this host was cut off from the coordinator, which may have lost all "
        "ranks; starting them again");
    return std::nullopt;
  }
  if (last) {
    if (hosts_ != nullptr) {
      hosts_->GiveUp(result.failure, result.blamed);
      hosts_->Leave("the job failed");
    }
    return result.status;
  }
  ++report_.restarts;
  report_.failure = result.failure;
  assignment_.restarts = report_.restarts;
  Say(absl::StrCat("starting all ranks again, restart ", report_.restarts,
                   " of ", assignment_.max_restarts));
  return std::nullopt;
}

}  // namespace

int Launch(const LaunchOptions& options, const SignalPlan& signals,
           const CoordinatorAddress& coordinator,
           const Environment& environment) {
  return Launcher(options, signals, coordinator, environment).Run();
}

}  // namespace muster::worker
