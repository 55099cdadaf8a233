#include "dataplane/observe/consistency_check.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "dataplane/observe/fingerprint.h"

namespace muster::dataplane {
namespace {

// The time for which a read from the store may delay an Abort or the group's
// end.
constexpr std::chrono::milliseconds kSlice{200};
// The same for a write, which takes longer to a distant store: it should not be
// cut short and repeated.
constexpr std::chrono::milliseconds kTell{1000};
// The time to ask whether one rank has come.
constexpr std::chrono::milliseconds kLook{50};
constexpr size_t kMissingNamed = 8;

std::string FormatTimeout(const Collective& collective) {
  return absl::FormatDuration(absl::FromChrono(collective.timeout));
}

}  // namespace

ConsistencyCheck::ConsistencyCheck(std::unique_ptr<Backend> inner,
                                   ConsistencyCheckOptions options)
    : BackendDecorator(std::move(inner)),
      options_(std::move(options)),
      thread_([this] { Serve(); }) {}

ConsistencyCheck::~ConsistencyCheck() {
  // An inner backend that is not aborted may close its connections in an
  // orderly way.
  if (!IsIdle()) {
    Abort(CancelledError(absl::StrCat(
        "group ", base::Quote(options_.group_name), " was destroyed")));
  }
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

ConsistencyCheck::Job ConsistencyCheck::MakeJob(const Collective& collective) {
  const int device = collective.cuda_device();
  return {.collective = collective,
          .work = std::make_shared<ProxyWork>(collective.Describe()),
          .stream = device < 0 ? nullptr : cuda::CurrentStream(device)};
}

std::shared_ptr<Work> ConsistencyCheck::Start(const Collective& collective) {
  const bool passes = IsPointToPoint(collective.kind);
  Status aborted;
  {
    MutexLock lock(mutex_);
    aborted = aborted_;
    if (aborted.ok() && passes && gathers_ && collective.cuda_device() >= 0) {
      gathered_.push_back(MakeJob(collective));
      return gathered_.back().work;
    }
    if (aborted.ok() && !passes) {
      jobs_.push_back({MakeJob(collective)});
      changed_.NotifyAll();
      return jobs_.back().front().work;
    }
  }
  if (passes) {
    MutexLock order(start_mutex_);
    return inner().Start(collective);
  }
  const auto work = MakeJob(collective).work;
  work->Complete(aborted);
  return work;
}

void ConsistencyCheck::BeginTogether() {
  MutexLock lock(mutex_);
  gathers_ = true;
}

void ConsistencyCheck::EndTogether() {
  Jobs late;
  Status aborted;
  {
    MutexLock lock(mutex_);
    gathers_ = false;
    late.swap(gathered_);
    aborted = aborted_;
    if (aborted.ok() && !late.empty()) {
      jobs_.push_back(std::exchange(late, {}));
      changed_.NotifyAll();
    }
  }
  for (const Job& job : late) job.work->Complete(aborted);
}

void ConsistencyCheck::Refused(const Collective& collective,
                               const Status& why) {
  inner().Refused(collective, why);
  if (!aborted().ok()) return;
  // Does not wait for the thread: the process may end because of this error. If
  // the write fails, the other ranks time out.
  options_.store
      ->SetBy(MakeKey(collective.sequence, options_.rank),
              MakeRefusal(collective, why.message()).Serialize(),
              Clock::now() + kTell)
      .IgnoreError();
}

void ConsistencyCheck::Abort(Status cause) {
  std::deque<Jobs> all;
  std::vector<std::shared_ptr<ProxyWork>> current;
  {
    MutexLock lock(mutex_);
    if (!aborted_.ok()) return;
    aborted_ = cause;
    all.swap(jobs_);
    current = current_;
    changed_.NotifyAll();
  }
  inner().Abort(cause);
  // These have not reached the inner backend.
  for (const auto& work : current) work->Complete(cause);
  for (const Jobs& jobs : all) {
    for (const Job& job : jobs) job.work->Complete(cause);
  }
}

StatusOr<std::shared_ptr<SymmetricMemory>> ConsistencyCheck::AllocateSymmetric(
    const SymmetricOptions& options) {
  {
    MutexLock lock(mutex_);
    while (runs_ || !jobs_.empty()) changed_.Wait(mutex_);
  }
  return inner().AllocateSymmetric(options);
}

bool ConsistencyCheck::IsIdle() const {
  MutexLock lock(mutex_);
  // Works that have left `current_` belong to the inner backend.
  return current_.empty() && jobs_.empty() && gathered_.empty();
}

Status ConsistencyCheck::aborted() const {
  MutexLock lock(mutex_);
  return aborted_;
}

void ConsistencyCheck::Serve() {
  for (;;) {
    Jobs jobs;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) changed_.Wait(mutex_);
      if (jobs_.empty()) return;
      jobs = std::move(jobs_.front());
      jobs_.pop_front();
      for (const Job& job : jobs) current_.push_back(job.work);
      runs_ = true;
    }
    CheckAndStart(jobs);
    MutexLock lock(mutex_);
    runs_ = false;
    changed_.NotifyAll();
  }
}

void ConsistencyCheck::CheckAndStart(const Jobs& jobs) {
  const bool together = IsPointToPoint(jobs.front().collective.kind);
  Status status;
  if (!together) status = Check(jobs.front().collective);
  {
    MutexLock lock(mutex_);
    // From here on the inner backend completes them.
    current_.clear();
    if (!aborted_.ok()) status = aborted_;
  }
  if (!status.ok()) {
    for (const Job& job : jobs) job.work->Complete(status);
    return;
  }
  MutexLock order(start_mutex_);
  if (together) inner().BeginTogether();
  for (const Job& job : jobs) StartInner(job);
  if (together) inner().EndTogether();
}

void ConsistencyCheck::StartInner(const Job& job) {
  if (const int device = job.collective.cuda_device(); device >= 0) {
    cuda::SetCurrentStream(device, job.stream);
  }
  const std::shared_ptr<Work> started = inner().Start(job.collective);
  job.work->Started(started);
  started->OnCompletion(
      [work = job.work, started = started.get()](const Status& result) {
        work->SetSourceRank(started->source_rank());
        work->Complete(result);
      });
}

std::string ConsistencyCheck::MakeKey(uint64_t sequence, int rank) const {
  return absl::StrCat("check/", sequence, "/", rank);
}

Status ConsistencyCheck::Check(const Collective& collective) {
  const auto label = [&](const Status& status) {
    return Labelled(FailedCall::Of(collective), options_.group_name, status);
  };
  const Fingerprint own = MakeFingerprint(collective, options_.world_size);
  const std::string own_text = own.Serialize();
  for (;;) {
    const Status told = options_.store->SetBy(
        MakeKey(collective.sequence, options_.rank), own_text,
        std::min(collective.deadline, Clock::now() + kTell));
    if (told.ok()) break;
    if (Status why = aborted(); !why.ok()) return why;
    if (!IsDeadlineExceeded(told)) return label(told);
    if (Clock::now() >= collective.deadline) {
      return label(DeadlineExceededError(
          absl::StrCat("timed out after ", FormatTimeout(collective),
                       " telling the other ranks of it, which the debug level "
                       "DETAIL does: the store does not answer")));
    }
  }
  std::vector<std::string> keys;
  keys.reserve(static_cast<size_t>(options_.world_size));
  for (int rank = 0; rank < options_.world_size; ++rank) {
    keys.push_back(MakeKey(collective.sequence, rank));
  }
  StatusOr<std::vector<std::string>> all;
  for (;;) {
    const Instant now = Clock::now();
    all =
        options_.store->Get(keys, std::min(collective.deadline, now + kSlice));
    if (all.ok()) break;
    if (Status why = aborted(); !why.ok()) return why;
    if (!IsDeadlineExceeded(all.status())) return label(all.status());
    if (Clock::now() >= collective.deadline) {
      return label(Missing(collective));
    }
  }
  std::vector<Fingerprint> prints;
  prints.reserve(all->size());
  for (const std::string& text : *all) {
    StatusOr<Fingerprint> print = Fingerprint::Parse(text);
    if (!print.ok()) return label(print.status());
    prints.push_back(*std::move(print));
  }
  // All ranks have come to this one, so all have read the entries of the last
  // one.
  if (collective.sequence > 1) {
    options_.store->Forget(MakeKey(collective.sequence - 1, options_.rank),
                           std::min(collective.deadline, Clock::now() + kTell));
  }
  const Status status = Compare(prints);
  return status.ok() ? status : label(status);
}

Status ConsistencyCheck::Missing(const Collective& collective) {
  std::vector<int> missing;
  // One call per rank. For a missing rank it takes all of kLook.
  int rank = 0;
  for (; rank < options_.world_size && missing.size() < kMissingNamed; ++rank) {
    Status come =
        options_.store
            ->Get({MakeKey(collective.sequence, rank)}, Clock::now() + kLook)
            .status();
    // Other ranks have found the missing ranks and ended the group.
    if (!come.ok() && !IsDeadlineExceeded(come)) {
      if (missing.empty()) return come;
      break;
    }
    if (!come.ok()) missing.push_back(rank);
  }
  Status status = DeadlineExceededError(absl::StrCat(
      "timed out after ", FormatTimeout(collective), " waiting for ",
      missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "),
      missing.size() == kMissingNamed && rank < options_.world_size
          ? " and maybe more"
          : "",
      " to come to it, which the debug level DETAIL checks",
      collective.sequence == 1 ? ": is it set there, too?" : ""));
  SetCulpritRanks(status, missing);
  return status;
}

}  // namespace muster::dataplane
