#include "dataplane/backends/gloo/gloo_backend.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "dataplane/backends/gloo/algorithms.h"
#include "dataplane/backends/gloo/exchange.h"
#include "dataplane/backends/gloo/mesh.h"
#include "dataplane/culprit.h"
#include "dataplane/mutex.h"
#include "dataplane/reduction.h"
#include "dataplane/work.h"

namespace muster::dataplane {
namespace {

using gloo_internal::Exchange;
using gloo_internal::Mesh;
using gloo_internal::Workspace;

// How often a running collective's peers are looked at. A peer that the
// algorithm is waiting for is noticed at once; this is for the others.
constexpr std::chrono::milliseconds kPeerCheckPeriod{100};

// How long a collective may go on after a peer has gone: it may have all it
// needs from that peer already, and end well.
constexpr std::chrono::milliseconds kPeerGoneGrace{500};

// A status with text in front and its payload kept.
absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  absl::Status result(status.code(),
                      absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    result.SetPayload(url, value);
  });
  return result;
}

// One group's queue of collectives and the two threads that serve it: the
// executor runs them one after the other; the watchdog keeps deadlines, looks
// after peers, and closes the connections once the group has failed.
class GlooBackend : public Backend {
 public:
  GlooBackend(std::string group_name, std::unique_ptr<Mesh> mesh);
  ~GlooBackend() override;

  absl::string_view name() const override { return "gloo"; }
  absl::Span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCpu};
    return kDevices;
  }
  absl::Status Supports(const Collective& collective) const override;
  std::shared_ptr<Work> Start(const Collective& collective) override;
  void Abort(absl::Status cause) override;

 private:
  struct Job {
    Collective collective;
    std::shared_ptr<PromisedWork> work;
  };

  void RunExecutor();
  void RunWatchdog();
  absl::Status Run(const Collective& collective);
  std::string LabelOf(const Collective& collective) const;
  Instant NextLook(Instant now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why the group has failed by `now`, or OK. Lets go of the lock meanwhile.
  absl::Status FindFailure(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TimeoutOf(const Collective& collective) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction.
  const std::string group_name_;
  const std::unique_ptr<Mesh> mesh_;

  // Of the executor alone.
  Workspace workspace_;

  Mutex mutex_;
  CondVar executor_wakes_;
  CondVar watchdog_wakes_;
  // The front one is running if `running_`.
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status abort_cause_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // How many Start has queued.
  uint64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  // In which collective, and when, the watchdog first saw that a peer is gone.
  uint64_t gone_noticed_in_ ABSL_GUARDED_BY(mutex_) = 0;
  Instant gone_noticed_at_ ABSL_GUARDED_BY(mutex_);
  // When the watchdog looks next, unless woken; max() is never.
  Instant next_look_ ABSL_GUARDED_BY(mutex_) = Instant::max();

  std::thread executor_;
  std::thread watchdog_;
};

GlooBackend::GlooBackend(std::string group_name, std::unique_ptr<Mesh> mesh)
    : group_name_(std::move(group_name)),
      mesh_(std::move(mesh)),
      workspace_(*mesh_),
      executor_([this] { RunExecutor(); }),
      watchdog_([this] { RunWatchdog(); }) {}

GlooBackend::~GlooBackend() {
  Abort(absl::CancelledError(
      absl::StrCat("group \"", group_name_, "\" was destroyed")));
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  executor_wakes_.NotifyAll();
  executor_.join();
  watchdog_wakes_.NotifyAll();
  watchdog_.join();
}

absl::Status GlooBackend::Supports(const Collective& collective) const {
  for (const Tensor& tensor : collective.tensors) {
    if (tensor.device().type != DeviceType::kCpu) {
      return absl::UnimplementedError(absl::StrCat(
          "the gloo backend takes CPU tensors, got ", tensor.Describe()));
    }
  }
  if (collective.kind != CollectiveKind::kAllReduce) return absl::OkStatus();
  return Reduction::Supports(collective.tensors[0].data_type(),
                             collective.reduce_op);
}

std::string GlooBackend::LabelOf(const Collective& collective) const {
  return absl::StrCat(collective.Label(), " on group \"", group_name_, "\"");
}

std::shared_ptr<Work> GlooBackend::Start(const Collective& collective) {
  auto work = std::make_shared<PromisedWork>(collective.Describe());
  absl::Status aborted;
  bool wake_executor = false;
  bool wake_watchdog = false;
  {
    MutexLock lock(mutex_);
    aborted = abort_cause_;
    if (aborted.ok()) {
      wake_executor = jobs_.empty();
      jobs_.push_back({collective, work});
      ++started_;
      wake_watchdog =
          next_look_ == Instant::max() || collective.deadline < next_look_;
    }
  }
  if (!aborted.ok()) {
    work->Complete(aborted);
    return work;
  }
  if (wake_executor) executor_wakes_.NotifyOne();
  if (wake_watchdog) watchdog_wakes_.NotifyOne();
  return work;
}

void GlooBackend::Abort(absl::Status cause) {
  {
    MutexLock lock(mutex_);
    if (!abort_cause_.ok()) return;
    abort_cause_ = cause;
  }
  mesh_->Abort(cause);
  executor_wakes_.NotifyAll();
  watchdog_wakes_.NotifyAll();
}

void GlooBackend::RunExecutor() {
  mutex_.Lock();
  for (;;) {
    while (jobs_.empty() && !stopping_) executor_wakes_.Wait(mutex_);
    if (jobs_.empty()) break;
    absl::Status status = abort_cause_;
    Job job = jobs_.front();
    running_ = status.ok();
    mutex_.Unlock();
    if (status.ok()) status = Run(job.collective);
    mutex_.Lock();
    running_ = false;
    jobs_.pop_front();
    const bool failed = !abort_cause_.ok();
    mutex_.Unlock();
    // The connections of a failed group are closed while nothing runs.
    if (failed) watchdog_wakes_.NotifyOne();
    job.work->Complete(std::move(status));
    mutex_.Lock();
  }
  mutex_.Unlock();
}

absl::Status GlooBackend::Run(const Collective& collective) {
  Exchange exchange(workspace_, collective);
  absl::Status status;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      status = gloo_internal::AllReduce(collective, exchange);
      break;
    case CollectiveKind::kBroadcast:
      status = gloo_internal::Broadcast(collective, exchange);
      break;
    case CollectiveKind::kBarrier:
      status = gloo_internal::Barrier(collective, exchange);
      break;
  }
  if (status.ok()) status = exchange.Finish();
  if (status.ok()) return status;
  // An abort's cause is the group's error, word for word.
  const absl::Status aborted = mesh_->abort_cause();
  if (!aborted.ok()) return aborted;
  status = Prefixed(LabelOf(collective), status);
  Abort(status);
  return status;
}

Instant GlooBackend::NextLook(Instant now) const {
  Instant next = now + kPeerCheckPeriod;
  for (const Job& job : jobs_) next = std::min(next, job.collective.deadline);
  return next;
}

absl::Status GlooBackend::TimeoutOf(const Collective& collective) const {
  const int waiting_for = mesh_->waiting_for();
  std::string text =
      absl::StrCat(LabelOf(collective), ": timed out after ",
                   absl::FormatDuration(absl::FromChrono(collective.timeout)));
  const Collective& running = jobs_.front().collective;
  if (running.sequence != collective.sequence) {
    absl::StrAppend(&text, " behind ", running.Label());
  }
  if (waiting_for >= 0) {
    absl::StrAppend(&text, " waiting for rank ", waiting_for);
  }
  absl::Status status = absl::DeadlineExceededError(text);
  if (waiting_for >= 0) SetCulpritRank(status, waiting_for);
  return status;
}

absl::Status GlooBackend::FindFailure(Instant now) {
  for (const Job& job : jobs_) {
    if (job.collective.deadline <= now) return TimeoutOf(job.collective);
  }
  mutex_.Unlock();
  const absl::Status gone = mesh_->CheckPeers();
  mutex_.Lock();
  if (gone.ok() || jobs_.empty()) return absl::OkStatus();
  const Collective& running = jobs_.front().collective;
  if (gone_noticed_in_ != running.sequence) {
    gone_noticed_in_ = running.sequence;
    gone_noticed_at_ = now;
  }
  if (now - gone_noticed_at_ < kPeerGoneGrace) return absl::OkStatus();
  return Prefixed(LabelOf(running), gone);
}

void GlooBackend::RunWatchdog() {
  bool closed = false;
  uint64_t seen_started = 0;
  mutex_.Lock();
  while (!(stopping_ && jobs_.empty() && closed)) {
    if (!abort_cause_.ok() && !running_ && !closed) {
      const absl::Status farewell = abort_cause_;
      mutex_.Unlock();
      mesh_->Close(farewell);
      mutex_.Lock();
      closed = true;
      continue;
    }
    // It goes on looking while collectives come and go, so that Start does not
    // have to wake it for each.
    const bool idle = jobs_.empty() && started_ == seen_started;
    seen_started = started_;
    if (!abort_cause_.ok() || idle) {
      next_look_ = Instant::max();
      watchdog_wakes_.Wait(mutex_);
    } else {
      next_look_ = NextLook(Clock::now());
      watchdog_wakes_.WaitUntil(mutex_, next_look_);
    }
    if (!abort_cause_.ok() || jobs_.empty()) continue;
    const absl::Status failure = FindFailure(Clock::now());
    if (failure.ok()) continue;
    mutex_.Unlock();
    Abort(failure);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateGlooBackend(
    const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<Mesh>> mesh = Mesh::Connect(options);
  if (!mesh.ok()) return mesh.status();
  return std::make_unique<GlooBackend>(options.group_name, *std::move(mesh));
}

}  // namespace muster::dataplane
