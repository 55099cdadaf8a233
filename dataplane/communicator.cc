#include "dataplane/communicator.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace muster::dataplane {
namespace {

std::shared_ptr<Work> FailedWork(std::string description,
                                 const absl::Status& status) {
  auto work = std::make_shared<PromisedWork>(std::move(description));
  work->Complete(status);
  return work;
}

// max(), where that is later than any Instant.
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

Communicator::Communicator(CommunicatorOptions options,
                           std::unique_ptr<Backend> backend)
    : options_(std::move(options)),
      since_(Clock::now()),
      backend_(std::move(backend)) {}

Communicator::~Communicator() {
  Abort(absl::CancelledError(
      absl::StrCat("group \"", options_.group_name, "\" was destroyed")));
}

absl::Status Communicator::Check(const Collective& collective) const {
  absl::Status valid = Validate(collective, options_.rank, options_.world_size);
  return valid.ok() ? backend_->Supports(collective) : valid;
}

std::shared_ptr<Work> Communicator::Start(Collective collective) {
  MutexLock order(start_mutex_);
  return StartNext(std::move(collective));
}

std::vector<std::shared_ptr<Work>> Communicator::StartTogether(
    std::vector<Collective> collectives) {
  MutexLock order(start_mutex_);
  std::vector<std::shared_ptr<Work>> works;
  works.reserve(collectives.size());
  backend_->BeginTogether();
  for (Collective& collective : collectives) {
    works.push_back(StartNext(std::move(collective)));
  }
  backend_->EndTogether();
  return works;
}

std::shared_ptr<Descent> Communicator::Split(const SplitOptions& options) {
  MutexLock order(start_mutex_);
  return backend_->Split(options);
}

absl::StatusOr<std::shared_ptr<SymmetricMemory>>
Communicator::AllocateSymmetric(const SymmetricOptions& options) {
  if (absl::Status poison = status(); !poison.ok()) return poison;
  auto memory = backend_->AllocateSymmetric(options);
  if (!memory.ok() && !absl::IsUnimplemented(memory.status()) &&
      !absl::IsResourceExhausted(memory.status())) {
    Abort(memory.status());
  }
  return memory;
}

absl::Status Communicator::Enter(Collective& collective, bool waits) {
  absl::Status refused = Check(collective);
  collective.started = Clock::now();
  if (collective.timeout.count() == 0) {
    collective.timeout = options_.default_timeout;
  }
  collective.deadline = After(collective.started, collective.timeout);
  {
    MutexLock lock(mutex_);
    // Also if it is refused: a rank whose arguments are bad must still consume
    // the number, or it calls every later collective by another name than its
    // peers do.
    collective.sequence = IsPointToPoint(collective.kind)
                              ? ++last_point_to_point_
                              : ++last_enqueued_;
    if (!poison_.ok()) return poison_;
    if (refused.ok()) {
      AddRunning(collective, waits);
      return refused;
    }
  }
  if (!IsPointToPoint(collective.kind)) {
    backend_->Refused(collective, refused);
  }
  return absl::Status(
      refused.code(),
      absl::StrCat(collective.Label(), " on group \"", options_.group_name,
                   "\": ", refused.message()));
}

void Communicator::AddRunning(const Collective& collective, bool waits) {
  if (IsPointToPoint(collective.kind)) {
    point_to_point_.emplace(
        collective.sequence,
        RunningPeerCall{collective.Describe(),
                        collective.started,
                        {.sends = collective.kind == CollectiveKind::kSend,
                         .number = collective.sequence,
                         .peer = collective.peer}});
    return;
  }
  if (running_.empty()) since_ = collective.started;
  Running& running = running_.emplace_back();
  running.sequence = collective.sequence;
  if (waits) {
    running.collective = &collective;
  } else {
    running.description = collective.Describe();
  }
}

std::shared_ptr<Work> Communicator::StartNext(Collective collective) {
  const absl::Status refused = Enter(collective, /*waits=*/false);
  if (!refused.ok()) return FailedWork(collective.Describe(), refused);
  std::shared_ptr<Work> work = backend_->Start(collective);
  if (IsPointToPoint(collective.kind)) {
    work->OnCompletion(
        [this, sequence = collective.sequence](const absl::Status& status) {
          PointToPointCompleted(sequence, status);
        });
  } else {
    work->OnCompletion(
        [this, sequence = collective.sequence](const absl::Status& status) {
          Completed(sequence, status, Clock::now());
        });
  }
  return work;
}

absl::Status Communicator::Run(Collective& collective) {
  ReleasableLock order(start_mutex_);
  absl::Status refused = Enter(collective, /*waits=*/true);
  if (!refused.ok()) return refused;
  Ending ending;
  try {
    ending = backend_->Run(collective, order);
  } catch (...) {
    // Nobody may look at the collective any more.
    Completed(
        collective.sequence,
        absl::InternalError(absl::StrCat(collective.Label(), " on group \"",
                                         options_.group_name, "\": threw")),
        Clock::now());
    throw;
  }
  Completed(collective.sequence, ending.status, ending.at);
  return std::move(ending.status);
}

void Communicator::Completed(uint64_t sequence, const absl::Status& status,
                             Instant at) {
  {
    MutexLock lock(mutex_);
    // The first, as a rule.
    const auto running =
        std::ranges::find(running_, sequence, &Running::sequence);
    if (running == running_.begin()) since_ = at;
    running_.erase(running);
    if (status.ok() && sequence > last_completed_) last_completed_ = sequence;
  }
  if (!status.ok()) Abort(status);
}

void Communicator::PointToPointCompleted(uint64_t sequence,
                                         const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    point_to_point_.erase(sequence);
  }
  if (!status.ok()) Abort(status);
}

void Communicator::Abort(absl::Status cause) {
  {
    MutexLock lock(mutex_);
    if (!poison_.ok()) return;
    poison_ = cause;
  }
  // Not a warning: whoever owns the group knows more of the failure, and logs
  // it.
  VLOG(1) << "group aborted: group=" << options_.group_name
          << " rank=" << options_.rank
          << " code=" << absl::StatusCodeToString(cause.code()) << " cause=\""
          << absl::CHexEscape(cause.message()) << "\"";
  backend_->Abort(std::move(cause));
}

absl::Status Communicator::status() const {
  MutexLock lock(mutex_);
  return poison_;
}

Progress Communicator::progress() const {
  MutexLock lock(mutex_);
  Progress progress = {.group_name = options_.group_name,
                       .last_enqueued = last_enqueued_,
                       .last_completed = last_completed_,
                       .since = since_};
  if (!running_.empty()) {
    const Running& oldest = running_.front();
    progress.current = oldest.collective != nullptr
                           ? oldest.collective->Describe()
                           : oldest.description;
  } else if (!point_to_point_.empty()) {
    const RunningPeerCall& oldest = point_to_point_.begin()->second;
    progress.current = oldest.description;
    progress.peer_call = oldest.call;
    progress.since = oldest.started;
  }
  return progress;
}

}  // namespace muster::dataplane
