#include "dataplane/communicator.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dataplane/failed_call.h"
#include "glog/logging.h"

namespace muster::dataplane {
namespace {

std::shared_ptr<Work> FailedWork(std::string description,
                                 const Status& status) {
  auto work = std::make_shared<PromisedWork>(std::move(description));
  work->Complete(status);
  return work;
}

// `begin` + `time`, at most Instant::max().
Instant After(Instant begin, std::chrono::milliseconds time) {
  int64_t nanoseconds = 0;
  if (__builtin_mul_overflow(time.count(), int64_t{1000000}, &nanoseconds) ||
      __builtin_add_overflow(begin.time_since_epoch().count(), nanoseconds,
                             &nanoseconds)) {
    return Instant::max();
  }
  return Instant(std::chrono::nanoseconds(nanoseconds));
}

}  // namespace

uint64_t ArgumentsHash(const Collective& collective) {
  // FNV-1a, by words.
  uint64_t hash = 14695981039346656037u;
  const auto add = [&hash](auto value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211u;
    hash ^= hash >> 32;
  };
  add(collective.kind);
  add(collective.step);
  add(collective.sequence);
  if (const Tensor* const tensor = collective.first_tensor();
      tensor != nullptr) {
    add(tensor->data_type());
    add(tensor->device().type);
  }
  if (const Collective::Tensors* const list = collective.common();
      list != nullptr) {
    add(list->size());
    for (const Tensor& tensor : *list) {
      add(tensor.shape().size());
      for (const int64_t extent : tensor.shape()) add(extent);
    }
  }
  add(collective.parts.size());
  for (const int64_t part : collective.parts) add(part);
  if (IsReduction(collective.kind)) add(collective.reduce_op);
  if (collective.opaque_bytes > 0) add(collective.opaque_bytes);
  if (collective.reduce_op == ReduceOp::kUser && IsReduction(collective.kind)) {
    add(collective.function.options().is_commutative);
  }
  if (IsRooted(collective.kind)) add(collective.root);
  return hash;
}

// Registers a caller as one of holders_.
class Communicator::BackendRef {
 public:
  explicit BackendRef(const Communicator& communicator)
      : communicator_(communicator) {
    MutexLock lock(communicator_.mutex_);
    if (communicator_.ends_) return;
    backend_ = communicator_.backend_.get();
    ++communicator_.holders_;
  }
  ~BackendRef() {
    if (backend_ == nullptr) return;
    MutexLock lock(communicator_.mutex_);
    communicator_.LetGo();
  }
  BackendRef(const BackendRef&) = delete;
  BackendRef& operator=(const BackendRef&) = delete;

  explicit operator bool() const { return backend_ != nullptr; }
  Backend* operator->() const { return backend_; }

 private:
  const Communicator& communicator_;
  Backend* backend_ = nullptr;
};

Communicator::Communicator(CommunicatorOptions options,
                           std::unique_ptr<Backend> backend)
    : options_(std::move(options)),
      backend_name_(backend->name()),
      fusable_bytes_(backend->fusable_bytes()),
      since_(Clock::now()),
      backend_(std::move(backend)) {}

void Communicator::Shutdown() {
  Status destroyed = CancelledError(absl::StrCat(
      "group ", base::Quote(options_.group_name), " was destroyed"));
  // A backend that is destroyed without an abort may close its connections in
  // an orderly way.
  if (!EndIdle(destroyed)) Abort(std::move(destroyed));
  // Declared before the lock, and so destroyed after it: completions take the
  // lock.
  std::unique_ptr<Backend> backend;
  MutexLock lock(mutex_);
  ends_ = true;
  while (holders_ > 0) let_go_.Wait(mutex_);
  backend = std::move(backend_);
}

bool Communicator::EndIdle(const Status& cause) {
  MutexLock lock(mutex_);
  TakeEnded(/*all=*/false);
  const bool is_idle = first_running_ == nullptr && running_.empty() &&
                       point_to_point_.empty() && holders_ == 0;
  if (!is_idle || !poison_.ok()) return false;
  poison_ = cause;
  // No call may enter the backend any more: no abort would end it.
  ends_ = true;
  return true;
}

// Every small collective runs the functions below.

inline void Communicator::LetGo() const {
  if (--holders_ == 0 && ends_) let_go_.NotifyAll();
}

inline void Communicator::Number(Collective& collective) {
  collective.started = Clock::now();
  if (collective.timeout.count() == 0) {
    collective.timeout = options_.default_timeout;
  }
  collective.deadline = After(collective.started, collective.timeout);
  // Also for a refused collective: if a rank whose arguments are bad did not
  // use up the number, its later collectives would have other numbers than its
  // peers'.
  collective.sequence = IsPointToPoint(collective.kind) ? ++last_point_to_point_
                                                        : ++last_enqueued_;
}

inline void Communicator::AddRunning(const Collective& collective, bool waits) {
  if (!running_.empty()) TakeEnded(/*all=*/false);
  const bool is_first = first_running_ == nullptr && running_.empty();
  if (is_first) since_ = collective.started;
  if (is_first && waits) {
    first_running_ = &collective;
  } else {
    AddNotFirst(collective, waits);
  }
}

inline void Communicator::RemoveRunning(uint64_t sequence, bool ok,
                                        Instant at) {
  if (ok && sequence > last_completed_) last_completed_ = sequence;
  if (first_running_ != nullptr && first_running_->sequence == sequence) {
    since_ = at;
    first_running_ = nullptr;
  } else {
    RemoveNotFirst(sequence, at);
  }
}

inline Communicator::Entered Communicator::EnterBackend(
    const Collective& collective) {
  try {
    Entered entered = {backend_->Enter(collective), backend_.get()};
    ++holders_;
    return entered;
  } catch (...) {
    RemoveRunning(collective.sequence, /*ok=*/false, Clock::now());
    throw;
  }
}

inline Status Communicator::RunEntered(const Collective& collective,
                                       Backend::Prepared* prepared,
                                       const Entered& entered) {
  Completion end;
  try {
    end = entered.backend->Run(collective, prepared, entered.ticket);
  } catch (...) {
    Completed(collective.sequence,
              Labelled(FailedCall::Of(collective), options_.group_name,
                       InternalError("threw")),
              Clock::now(), /*waits=*/true);
    throw;
  }
  Completed(collective.sequence, end.status, end.at, /*waits=*/true);
  return std::move(end.status);
}

Status Communicator::Run(Collective& collective) {
  Refusal refusal;
  Entered entered;
  {
    MutexLock order(mutex_);
    refusal = Enter(collective, /*waits=*/true);
    if (refusal.why.ok()) entered = EnterBackend(collective);
  }
  if (entered.backend == nullptr) return MakeError(collective, refusal);
  return RunEntered(collective, /*prepared=*/nullptr, entered);
}

Status Communicator::Run(PreparedCollective& prepared) {
  // `run_` belongs to a run that goes on.
  std::optional<Collective> refused;
  Refusal refusal;
  Entered entered;
  {
    MutexLock order(mutex_);
    const bool is_running =
        prepared.is_running_.load(std::memory_order_acquire);
    if (poison_.ok() && !is_running) {
      Number(prepared.run_);
      AddRunning(prepared.run_, /*waits=*/true);
      entered = EnterBackend(prepared.run_);
      prepared.is_running_.store(true, std::memory_order_relaxed);
    } else {
      Number(refused.emplace(prepared.arguments_));
      refusal = poison_.ok()
                    ? Refusal{StillRuns(prepared), /*by_arguments=*/true}
                    : Refusal{poison_};
    }
  }
  if (entered.backend == nullptr) return MakeError(*refused, refusal);
  const absl::Cleanup ended = [&] {
    prepared.is_running_.store(false, std::memory_order_release);
  };
  return RunEntered(prepared.run_, prepared.of_backend_.get(), entered);
}

StatusOr<std::unique_ptr<PreparedCollective>> Communicator::Prepare(
    Collective collective) {
  const BackendRef backend(*this);
  if (Status poison = status(); !poison.ok()) return poison;
  Status bad = Validate(collective, options_.rank, options_.world_size);
  if (bad.ok()) bad = backend->Supports(collective);
  if (!bad.ok()) {
    return Status(
        bad.code(),
        absl::StrCat(CollectiveKindName(collective.kind), " on group ",
                     base::Quote(options_.group_name), ": ", bad.message()));
  }
  auto prepared = std::make_unique<PreparedCollective>(std::move(collective));
  prepared->of_backend_ = backend->Prepare(prepared->run_);
  return prepared;
}

Status Communicator::Check(const Collective& collective) const {
  Status valid = Validate(collective, options_.rank, options_.world_size);
  if (!valid.ok()) return valid;
  const BackendRef backend(*this);
  return backend ? backend->Supports(collective) : status();
}

std::shared_ptr<Work> Communicator::Start(Collective collective) {
  return StartOne(std::move(collective), /*prepared=*/nullptr);
}

std::shared_ptr<Work> Communicator::Start(
    std::shared_ptr<PreparedCollective> prepared) {
  Collective collective = prepared->arguments_;
  return StartOne(std::move(collective), std::move(prepared));
}

Status Communicator::Refuse(Collective collective, const Status& why) {
  Refusal refusal = {.why = why, .by_arguments = true};
  {
    MutexLock order(mutex_);
    Number(collective);
    if (!poison_.ok()) refusal = {poison_};
  }
  return MakeError(collective, refusal);
}

std::shared_ptr<Work> Communicator::StartOne(
    Collective collective, std::shared_ptr<PreparedCollective> prepared) {
  Refusal refusal;
  std::shared_ptr<Work> work;
  Works ended;
  {
    MutexLock order(mutex_);
    refusal = Enter(collective, /*waits=*/false, prepared.get());
    if (refusal.why.ok()) {
      work = StartEntered(collective);
      if (prepared != nullptr) {
        prepared->run_.sequence = collective.sequence;
        prepared->is_running_.store(true, std::memory_order_relaxed);
      }
    }
    ended.swap(ended_);
  }
  if (work != nullptr && prepared != nullptr) {
    // Before the group's own callback, and before a Wait returns.
    work->OnCompletion([prepared = std::move(prepared)](const Status&) {
      prepared->is_running_.store(false, std::memory_order_release);
    });
  }
  return MakeHandle(collective, refusal, std::move(work));
}

std::vector<std::shared_ptr<Work>> Communicator::StartTogether(
    std::vector<Collective> collectives) {
  std::vector<Refusal> refusals(collectives.size());
  std::vector<std::shared_ptr<Work>> works(collectives.size());
  Works ended;
  {
    MutexLock order(mutex_);
    if (!ends_) backend_->BeginTogether();
    for (size_t i = 0; i < collectives.size(); ++i) {
      refusals[i] = Enter(collectives[i], /*waits=*/false);
      if (refusals[i].why.ok()) works[i] = StartEntered(collectives[i]);
    }
    if (!ends_) backend_->EndTogether();
    ended.swap(ended_);
  }
  for (size_t i = 0; i < collectives.size(); ++i) {
    works[i] = MakeHandle(collectives[i], refusals[i], std::move(works[i]));
  }
  return works;
}

std::shared_ptr<ParentHandle> Communicator::Split(const SplitOptions& options) {
  MutexLock order(mutex_);
  return ends_ ? nullptr : backend_->Split(options);
}

StatusOr<std::shared_ptr<SymmetricMemory>> Communicator::AllocateSymmetric(
    const SymmetricOptions& options) {
  // Taken before the check: a backend that has a holder is not destroyed
  // without an abort.
  const BackendRef backend(*this);
  if (Status poison = status(); !poison.ok()) return poison;
  auto memory = backend->AllocateSymmetric(options);
  if (!memory.ok() && !IsUnimplemented(memory.status()) &&
      !IsResourceExhausted(memory.status())) {
    Abort(memory.status());
  }
  return memory;
}

uint64_t Communicator::last_enqueued() const {
  MutexLock lock(mutex_);
  return last_enqueued_;
}

LastRun Communicator::last_run(DeviceType device) const {
  const BackendRef backend(*this);
  return backend ? backend->last_run(device) : LastRun();
}

Status Communicator::StillRuns(const PreparedCollective& prepared) const {
  return InvalidArgumentError(
      absl::StrCat("this prepared collective still runs, as ",
                   prepared.run_.Label(), ", and has one run at a time"));
}

Status Communicator::FindBad(const Collective& collective,
                             const PreparedCollective* prepared) const {
  if (prepared != nullptr) {
    return prepared->is_running_.load(std::memory_order_acquire)
               ? StillRuns(*prepared)
               : OkStatus();
  }
  Status bad = Validate(collective, options_.rank, options_.world_size);
  return bad.ok() ? backend_->Supports(collective) : bad;
}

Communicator::Refusal Communicator::Enter(Collective& collective, bool waits,
                                          const PreparedCollective* prepared) {
  Number(collective);
  if (!poison_.ok()) return {poison_};
  Status bad = FindBad(collective, prepared);
  if (!bad.ok()) return {std::move(bad), /*by_arguments=*/true};
  if (collective.data_type() == DataType::kOpaque) OpaqueToBytes(collective);
  if (IsPointToPoint(collective.kind)) {
    AddPeerCall(collective);
  } else {
    AddRunning(collective, waits);
  }
  return {};
}

Status Communicator::MakeError(const Collective& collective,
                               const Refusal& refusal) {
  if (!refusal.by_arguments) return refusal.why;
  if (!IsPointToPoint(collective.kind)) {
    const BackendRef backend(*this);
    if (backend) backend->Refused(collective, refusal.why);
  }
  return Status(refusal.why.code(),
                absl::StrCat(collective.Label(), " on group ",
                             base::Quote(options_.group_name), ": ",
                             refusal.why.message()));
}

void Communicator::AddPeerCall(const Collective& collective) {
  point_to_point_.emplace(
      collective.sequence,
      RunningPeerCall{collective.Describe(),
                      collective.started,
                      {.sends = collective.kind == CollectiveKind::kSend,
                       .number = collective.sequence,
                       .peer = collective.peer}});
}

void Communicator::AddNotFirst(const Collective& collective, bool waits) {
  running_.push_back({.sequence = collective.sequence,
                      .collective = waits ? &collective : nullptr,
                      .arguments_hash = waits ? 0 : ArgumentsHash(collective)});
}

std::shared_ptr<Work> Communicator::StartEntered(const Collective& collective) {
  const bool has_peer = IsPointToPoint(collective.kind);
  try {
    std::shared_ptr<Work> work = backend_->Start(collective);
    // The entry is still the last one: OnCompletion is not yet registered.
    if (!has_peer) running_.back().work = work;
    return work;
  } catch (...) {
    if (has_peer) {
      point_to_point_.erase(collective.sequence);
    } else {
      running_.pop_back();
    }
    throw;
  }
}

void Communicator::RemoveNotFirst(uint64_t sequence, Instant at) {
  // Usually the first entry.
  const auto running =
      std::ranges::find(running_, sequence, &Running::sequence);
  if (first_running_ == nullptr && running == running_.begin()) since_ = at;
  running_.erase(running);
}

std::shared_ptr<Work> Communicator::MakeHandle(const Collective& collective,
                                               const Refusal& refusal,
                                               std::shared_ptr<Work> work) {
  if (!refusal.why.ok()) {
    return FailedWork(collective.Describe(), MakeError(collective, refusal));
  }
  if (IsPointToPoint(collective.kind)) {
    work->OnCompletion(
        [this, sequence = collective.sequence](const Status& status) {
          PointToPointCompleted(sequence, status);
        });
  } else {
    work->OnCompletion(
        [this, sequence = collective.sequence](const Status& status) {
          StartedCompleted(sequence, status);
        });
  }
  return work;
}

void Communicator::Completed(uint64_t sequence, const Status& status,
                             Instant at, bool waits) {
  {
    MutexLock lock(mutex_);
    RemoveRunning(sequence, status.ok(), at);
    if (status.ok() && waits) LetGo();
  }
  if (status.ok()) return;
  Abort(status);
  if (!waits) return;
  MutexLock lock(mutex_);
  LetGo();
}

void Communicator::StartedCompleted(uint64_t sequence, const Status& status) {
  const Instant now = Clock::now();
  if (status.ok()) {
    ended_at_.store(now, std::memory_order_relaxed);
  } else {
    Completed(sequence, status, now, /*waits=*/false);
  }
}

void Communicator::TakeEnded(bool all) {
  // A failure is counted when it poisons the group (Completed).
  const auto has_succeeded = [](const Running& running) {
    return running.work != nullptr && running.work->IsCompleted() &&
           running.work->status().ok();
  };
  for (auto running = running_.begin(); running != running_.end();) {
    if (!has_succeeded(*running)) {
      if (!all) return;
      ++running;
      continue;
    }
    // This may be the time of an earlier one, if its callback has yet to come.
    if (first_running_ == nullptr && running == running_.begin()) {
      since_ = std::max(since_, ended_at_.load(std::memory_order_relaxed));
    }
    last_completed_ = std::max(last_completed_, running->sequence);
    ended_.push_back(std::move(running->work));
    running = running_.erase(running);
  }
}

void Communicator::PointToPointCompleted(uint64_t sequence,
                                         const Status& status) {
  {
    MutexLock lock(mutex_);
    point_to_point_.erase(sequence);
  }
  if (!status.ok()) Abort(status);
}

void Communicator::Abort(Status cause) {
  // Taken before the group is poisoned, so that Shutdown waits for it.
  const BackendRef backend(*this);
  {
    MutexLock lock(mutex_);
    if (!poison_.ok()) return;
    poison_ = cause;
  }
  // Not a warning: the group's owner knows more about the failure and logs it.
  VLOG(1) << "group aborted: group=" << base::LogValue(options_.group_name)
          << " rank=" << options_.rank
          << " code=" << StatusCodeToString(cause.code())
          << " cause=" << base::Quote(cause.message());
  if (backend) backend->Abort(std::move(cause));
}

Status Communicator::status() const {
  MutexLock lock(mutex_);
  return poison_;
}

Progress Communicator::progress() {
  Works ended;
  MutexLock lock(mutex_);
  TakeEnded(/*all=*/true);
  ended.swap(ended_);
  Progress progress = {.group_name = options_.group_name,
                       .last_enqueued = last_enqueued_,
                       .last_completed = last_completed_,
                       .since = since_};
  if (first_running_ != nullptr) {
    progress.current = first_running_->Describe();
    progress.arguments_hash = ArgumentsHash(*first_running_);
  } else if (!running_.empty()) {
    const Running& oldest = running_.front();
    progress.current = oldest.collective != nullptr
                           ? oldest.collective->Describe()
                           : oldest.work->description();
    progress.arguments_hash = oldest.collective != nullptr
                                  ? ArgumentsHash(*oldest.collective)
                                  : oldest.arguments_hash;
  } else if (!point_to_point_.empty()) {
    const RunningPeerCall& oldest = point_to_point_.begin()->second;
    progress.current = oldest.description;
    progress.peer_call = oldest.call;
    progress.since = oldest.started;
  }
  return progress;
}

}  // namespace muster::dataplane
