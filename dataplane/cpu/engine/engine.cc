#include "dataplane/cpu/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/exception_guard.h"
#include "base/text.h"
#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/transport/transport_errors.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// The period of checks for gone peers during a collective. If the algorithm
// waits for a peer, its end is noticed at once; this is for the others.
constexpr std::chrono::milliseconds kLookPeriod{100};

// The time that a collective may go on after a peer has gone: it may have
// everything it needs from that peer, and succeed.
constexpr std::chrono::milliseconds kPeerGoneGrace{300};

// The time that a collective may go on after its deadline while it waits for no
// rank: its thread lacks a processor, and will wait for the missing rank when
// it gets one. And the period of checks for that.
constexpr std::chrono::milliseconds kNotWaitingGrace{1000};
constexpr std::chrono::milliseconds kNotWaitingPeriod{5};

}  // namespace

class Engine::QueuedWork : public PromisedWork {
 public:
  explicit QueuedWork(const Collective& collective)
      : PromisedWork(collective.Describe()), collective_(collective) {}

  const Collective& collective() const { return collective_; }

 private:
  const Collective collective_;
};

Engine::Engine(std::string group_name, std::unique_ptr<Transport> transport,
               Unserved)
    : group_name_(std::move(group_name)),
      transport_(std::move(transport)),
      workspace_(*transport_),
      point_to_point_(std::make_shared<PointToPoint>(
          group_name_, *transport_,
          [this](const Status& failure) { Abort(failure); })) {}

void Engine::Serve() {
  watchdog_.emplace([this] { return Look(); });
}

Engine::~Engine() {
  if (transport_ != nullptr) Stop();
}

void Engine::SetShortcut(std::unique_ptr<Shortcut> shortcut) {
  MutexLock lock(mutex_);
  if (!abort_cause_.ok()) shortcut->Wake();
  shortcut_ = std::move(shortcut);
  // The group now meets through the shortcut, so this memory is not needed.
  workspace_.Clear();
}

void Engine::Stop() {
  Abort(CancelledError(
      absl::StrCat("group ", base::Quote(group_name_), " was destroyed")));
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  turn_.NotifyAll();
  if (executor_.joinable()) executor_.join();
  if (watchdog_.has_value()) watchdog_->Stop();
  if (closer_.joinable()) closer_.join();
  {
    MutexLock lock(mutex_);
    while (running_ || !jobs_.empty()) turn_.Wait(mutex_);
    CloseTransport(/*cuts_off=*/false);
  }
  // No collective runs or is queued, so no thread in Run uses these.
  workspace_.Clear();
  shortcut_.reset();
  point_to_point_.reset();
  transport_.reset();
}

bool Engine::Enqueue(Job job) {
  const Instant deadline = job.collective->deadline;
  job.number = started_ + 1;
  jobs_.push_back(std::move(job));
  ++started_;
  return next_look_ == Instant::max() || deadline < next_look_;
}

std::shared_ptr<Work> Engine::Start(const Collective& collective) {
  if (IsPointToPoint(collective.kind)) return StartPointToPoint(collective);
  auto work = std::make_shared<QueuedWork>(collective);
  Status aborted;
  Status lacking;
  bool wake_executor = false;
  bool wake_watchdog = false;
  {
    MutexLock lock(mutex_);
    aborted = abort_cause_;
    if (aborted.ok()) lacking = NeedExecutor();
    if (aborted.ok() && lacking.ok()) {
      wake_watchdog = Enqueue({&work->collective(), work});
      wake_executor = !running_;
    }
  }
  if (!lacking.ok()) {
    Fail(collective, lacking);
    aborted = transport_->abort_cause();
  }
  if (!aborted.ok()) {
    work->Complete(aborted);
    return work;
  }
  if (wake_executor) turn_.NotifyAll();
  if (wake_watchdog) watchdog_->Wake();
  return work;
}

Status Engine::NeedExecutor() {
  if (executor_.joinable()) return OkStatus();
  return Guarded([&] {
    executor_ = std::thread([this] { RunExecutor(); });
    return OkStatus();
  });
}

std::unique_ptr<Backend::Prepared> Engine::Prepare(
    const Collective& collective) {
  return shortcut_ != nullptr && !IsUserReduction(collective) &&
                 shortcut_->Takes(collective)
             ? shortcut_->Prepare(collective)
             : nullptr;
}

inline Status Engine::Move(const Collective& collective,
                           Backend::Prepared* prepared) {
  return shortcut_ != nullptr && shortcut_->Takes(collective)
             ? shortcut_->Run(collective, prepared)
             : RunOnConnections(collective);
}

Status Engine::RunUserReduction(const Collective& collective) {
  const char* algorithm = "";
  // On several hosts, data with one receiver takes the connections.
  const bool has_two_ways =
      shortcut_ != nullptr &&
      !shortcut_->Takes({.kind = CollectiveKind::kAllToAll});
  Status status = user_reduction_.Run(
      collective, transport_->rank(), transport_->world_size(),
      /*meets_first=*/has_two_ways,
      [this](const Collective& step) {
        return Move(step, /*prepared=*/nullptr);
      },
      algorithm);
  transport_->set_algorithm(algorithm);
  return status;
}

inline Status Engine::RunNow(const Collective& collective,
                             Backend::Prepared* prepared) {
  Status status = Guarded([&]() __attribute__((always_inline)) {
    return IsUserReduction(collective) ? RunUserReduction(collective)
                                       : Move(collective, prepared);
  });
  return status.ok() ? status : FailNow(collective, status);
}

Ticket Engine::Enter(const Collective& collective) {
  Ticket ticket;
  bool wake_watchdog = false;
  {
    MutexLock lock(mutex_);
    // A group that was aborted runs nothing more: see AwaitTurn.
    ticket.is_first = jobs_.empty() && abort_cause_.ok();
    wake_watchdog = Enqueue({&collective});
    ticket.number = started_;
    if (ticket.is_first) running_ = true;
  }
  if (wake_watchdog) watchdog_->Wake();
  return ticket;
}

Status Engine::AwaitTurn(uint64_t number) {
  MutexLock lock(mutex_);
  while (running_ || jobs_.front().number != number) turn_.Wait(mutex_);
  running_ = true;
  return abort_cause_;
}

Completion Engine::Run(const Collective& collective,
                       Backend::Prepared* prepared, const Ticket& ticket) {
  Status status = ticket.is_first ? OkStatus() : AwaitTurn(ticket.number);
  const bool begins = status.ok();
  if (begins) status = RunNow(collective, prepared);
  // Read before a lock is taken, which waits until what was published has left
  // this processor.
  const Instant at = Clock::now();
  EndFirst(/*work=*/nullptr, status, /*has_begun=*/begins);
  return {std::move(status), at};
}

Status Engine::RunStep(const Collective& step) {
  return Run(step, /*prepared=*/nullptr, Enter(step)).status;
}

std::shared_ptr<Work> Engine::StartPointToPoint(const Collective& collective) {
  std::shared_ptr<Work> work = point_to_point_->Start(collective);
  bool wake_watchdog = false;
  if (!work->IsCompleted()) {
    MutexLock lock(mutex_);
    wake_watchdog =
        next_look_ == Instant::max() || collective.deadline < next_look_;
  }
  if (wake_watchdog) watchdog_->Wake();
  return work;
}

void Engine::Abort(const Status& cause) {
  {
    MutexLock lock(mutex_);
    if (!abort_cause_.ok()) return;
    abort_cause_ = cause;
    // Under the lock, because Stop takes it before it destroys the transport.
    transport_->Abort(cause);
    if (shortcut_ != nullptr) shortcut_->Wake();
  }
  turn_.NotifyAll();
  // Without a watchdog, Stop closes the transport.
  if (watchdog_.has_value()) watchdog_->Wake();
}

void Engine::Fail(const Collective& failed, const Status& failure) {
  const Collective& collective =
      failed.step_of != nullptr ? *failed.step_of : failed;
  const bool is_verdict = Verdict(failure).has_value();
  Abort(is_verdict
            ? failure
            : Labelled(FailedCall::Of(collective), group_name_, failure));
}

void Engine::RunFirst() {
  Status status = abort_cause_;
  // The reference stays valid until EndFirst removes the job.
  const Job& job = jobs_.front();
  running_ = true;
  mutex_.Unlock();
  const bool begins = status.ok();
  if (begins) {
    status = RunNow(*job.collective, /*prepared=*/nullptr);
  }
  EndFirst(job.work.get(), status, /*has_begun=*/begins);
  mutex_.Lock();
}

void Engine::EndFirst(QueuedWork* work, const Status& status, bool has_begun) {
  if (!status.ok()) {
    // A caller that sees the failure may free the tensor. So no thread may use
    // it any more, and reads by other ranks must be invalid.
    MutexLock lock(mutex_);
    CloseTransport(/*cuts_off=*/has_begun);
  }
  // Complete it before another thread may run the next job: works complete in
  // order.
  if (work != nullptr) work->Complete(status);
  MutexLock lock(mutex_);
  running_ = false;
  jobs_.pop_front();
  // The watchdog closes an idle group that is aborted.
  if (!abort_cause_.ok()) watchdog_->Wake();
  // The executor looks for its next job itself.
  const bool is_next_awaited =
      !jobs_.empty() && (work == nullptr || jobs_.front().work == nullptr);
  if (is_next_awaited || stopping_) turn_.NotifyAll();
}

void Engine::CloseTransport(bool cuts_off) {
  if (closed_) return;
  closed_ = true;
  const Status goodbye = abort_cause_;
  mutex_.Unlock();
  point_to_point_->Quiesce();
  transport_->Close(goodbye);
  // After Close: a peer that sees this rank leave reads its goodbye.
  if (shortcut_ != nullptr) {
    shortcut_->Leave(/*has_failed=*/cuts_off || !IsCancelled(goodbye));
  }
  point_to_point_->Close(goodbye);
  mutex_.Lock();
}

void Engine::RunExecutor() {
  mutex_.Lock();
  for (;;) {
    while (running_ ||
           (jobs_.empty() ? !stopping_ : jobs_.front().work == nullptr)) {
      turn_.Wait(mutex_);
    }
    if (jobs_.empty()) break;
    RunFirst();
  }
  mutex_.Unlock();
}

Status Engine::RunOnConnections(const Collective& collective) {
  const AlgorithmFunction run = FindFunction(collective.kind);
  if (run == nullptr) return InternalError("not a collective");
  Exchange exchange(workspace_, collective);
  return run(collective, exchange);
}

Status Engine::FailNow(const Collective& collective, const Status& failure) {
  // Describing a failure may throw, too.
  return Guarded([&] {
    Fail(collective, failure);
    // The first abort's cause is the group's error, word for word.
    return transport_->abort_cause();
  });
}

Instant Engine::NextLook(Instant now) const {
  Instant next = std::min(now + kLookPeriod, point_to_point_->FirstDeadline());
  for (const Job& job : jobs_) {
    const Instant deadline = job.collective->deadline;
    next = std::min(next, deadline > now ? deadline : now + kNotWaitingPeriod);
  }
  return next;
}

Status Engine::MakeTimeoutError(const Collective& collective) const {
  const int waiting_for = transport_->waiting_for();
  std::string text =
      absl::StrCat("timed out after ",
                   absl::FormatDuration(absl::FromChrono(collective.timeout)));
  const Collective& running = *jobs_.front().collective;
  if (running.sequence != collective.sequence) {
    absl::StrAppend(&text, " behind ", running.Label());
  }
  if (waiting_for >= 0) {
    absl::StrAppend(&text, " waiting for rank ", waiting_for);
  }
  Status status = DeadlineExceededError(text);
  if (waiting_for >= 0) SetCulpritRank(status, waiting_for);
  return Labelled(FailedCall::Of(collective), group_name_, status);
}

Status Engine::FindFailure(Instant now) {
  for (const Job& job : jobs_) {
    const Instant deadline = job.collective->deadline;
    // Wait until the awaited rank can be named.
    if (deadline <= now && (transport_->waiting_for() >= 0 ||
                            now - deadline >= kNotWaitingGrace)) {
      return MakeTimeoutError(*job.collective);
    }
  }
  Status timeout = point_to_point_->FindTimeout(now);
  if (!timeout.ok()) return timeout;
  mutex_.Unlock();
  Status gone = transport_->CheckPeers();
  mutex_.Lock();
  // A peer that ended by a verdict ends this group at once, without the grace.
  if (gone.ok() || Verdict(gone).has_value()) return gone;
  FailedCall call;
  if (!jobs_.empty()) {
    call = FailedCall::Of(*jobs_.front().collective);
  } else if (const auto oldest = point_to_point_->oldest()) {
    call = oldest->call;
  } else {
    return OkStatus();
  }
  if (gone_noticed_in_ != call) {
    gone_noticed_in_ = call;
    gone_noticed_at_ = now;
  }
  if (now - gone_noticed_at_ < kPeerGoneGrace) return OkStatus();
  return Labelled(call, group_name_, gone);
}

bool Engine::IsBusy() const {
  return !jobs_.empty() || point_to_point_->oldest().has_value();
}

Instant Engine::Look() {
  MutexLock lock(mutex_);
  if (abort_cause_.ok() && IsBusy()) {
    const Status failure = FindFailure(Clock::now());
    if (!failure.ok()) {
      mutex_.Unlock();
      Abort(failure);
      mutex_.Lock();
    }
  }
  if (!abort_cause_.ok()) CloseIdle();
  // The watchdog keeps checking while collectives come and go, so that Start
  // need not wake it for each.
  const bool idle = !IsBusy() && started_ == seen_started_;
  seen_started_ = started_;
  next_look_ =
      !abort_cause_.ok() || idle ? Instant::max() : NextLook(Clock::now());
  return next_look_;
}

void Engine::CloseIdle() {
  // Stop closes the transport itself.
  if (running_ || closed_ || stopping_ || closer_.joinable()) return;
  try {
    closer_ = std::thread([this] {
      MutexLock lock(mutex_);
      if (!running_) CloseTransport(/*cuts_off=*/false);
    });
  } catch (const std::system_error&) {
    // No thread can be started. Closing here delays the other groups' tasks.
    CloseTransport(/*cuts_off=*/false);
  }
}

}  // namespace muster::dataplane::cpu
