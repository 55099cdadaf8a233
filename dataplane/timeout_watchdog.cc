#include "dataplane/timeout_watchdog.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "dataplane/failed_call.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane {
namespace {

std::string Text(std::chrono::milliseconds time) {
  return absl::FormatDuration(absl::FromChrono(time));
}

Instant After(Instant begin, std::chrono::milliseconds time) {
  return begin < Instant::max() - time ? begin + time : Instant::max();
}

}  // namespace

// The running works and their deadlines.
class TimeoutWatchdog::Clockwork {
 public:
  explicit Clockwork(std::chrono::milliseconds grace) : grace_(grace) {}

  // Fails `work` with `late` if it is not complete at `deadline` plus the
  // grace.
  uint64_t Add(std::shared_ptr<ProxyWork> work, Instant deadline, Status late)
      MUSTER_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    Entry entry{std::move(work), After(deadline, grace_), std::move(late)};
    if (!aborted_.ok()) entry.Hurry(After(Clock::now(), grace_), aborted_);
    if (entry.until < wakes_at_) changed_.NotifyAll();
    entries_.emplace(++last_, std::move(entry));
    return last_;
  }

  void Remove(uint64_t number) MUSTER_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    entries_.erase(number);
  }

  // Every running and every later work fails with `cause` after the grace.
  void Abort(const Status& cause) MUSTER_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (!aborted_.ok()) return;
    aborted_ = cause;
    const Instant until = After(Clock::now(), grace_);
    for (auto& [number, entry] : entries_) entry.Hurry(until, cause);
    changed_.NotifyAll();
  }

  // The thread's loop. Returns after Stop.
  void Run() MUSTER_LOCKS_EXCLUDED(mutex_) {
    while (AwaitNext()) {
      for (const Entry& entry : TakeLate(Clock::now())) {
        entry.work->Complete(entry.late);
      }
    }
    for (const Entry& entry : TakeLate(Instant::max())) {
      entry.work->Complete(entry.late);
    }
  }

  // Makes Run fail all running works and return.
  void Stop() MUSTER_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }

 private:
  struct Entry {
    void Hurry(Instant by, const Status& cause) {
      until = std::min(until, by);
      late = cause;
    }

    std::shared_ptr<ProxyWork> work;
    Instant until;
    Status late;
  };

  // Returns false after Stop.
  bool AwaitNext() MUSTER_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    for (;;) {
      if (stopping_) return false;
      wakes_at_ = Instant::max();
      for (const auto& [number, entry] : entries_) {
        wakes_at_ = std::min(wakes_at_, entry.until);
      }
      if (wakes_at_ <= Clock::now()) return true;
      if (wakes_at_ == Instant::max()) {
        changed_.Wait(mutex_);
      } else {
        changed_.WaitUntil(mutex_, wakes_at_);
      }
    }
  }

  std::vector<Entry> TakeLate(Instant now) MUSTER_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    std::vector<Entry> late;
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->second.until > now) {
        ++it;
        continue;
      }
      late.push_back(std::move(it->second));
      it = entries_.erase(it);
    }
    return late;
  }

  const std::chrono::milliseconds grace_;

  Mutex mutex_;
  CondVar changed_;
  // By number.
  std::map<uint64_t, Entry> entries_ MUSTER_GUARDED_BY(mutex_);
  uint64_t last_ MUSTER_GUARDED_BY(mutex_) = 0;
  // The time at which the thread wakes.
  Instant wakes_at_ MUSTER_GUARDED_BY(mutex_) = Instant::max();
  Status aborted_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
};

TimeoutWatchdog::TimeoutWatchdog(std::unique_ptr<Backend> inner,
                                 WatchdogOptions options)
    : BackendDecorator(std::move(inner)),
      options_(std::move(options)),
      clockwork_(std::make_shared<Clockwork>(options_.grace)),
      thread_([clockwork = clockwork_.get()] { clockwork->Run(); }) {}

TimeoutWatchdog::~TimeoutWatchdog() {
  clockwork_->Abort(CancelledError(absl::StrCat(
      "group ", base::Quote(options_.group_name), " was destroyed")));
  // The backend may complete its works here, but need not.
  DestroyInner();
  clockwork_->Stop();
  thread_.join();
}

std::shared_ptr<Work> TimeoutWatchdog::Start(const Collective& collective) {
  auto work = std::make_shared<ProxyWork>(collective.Describe());
  const uint64_t number = clockwork_->Add(
      work, collective.deadline,
      Labelled(FailedCall::Of(collective), options_.group_name,
               DeadlineExceededError(absl::StrCat(
                   "backend ", base::Quote(name()), " of rank ", options_.rank,
                   " did not complete it within ", Text(collective.timeout),
                   ", nor in the ", Text(options_.grace), " after that"))));
  const std::shared_ptr<Work> inner_work = inner().Start(collective);
  // For Synchronize: a stream waits for the inner work, the host for the outer
  // one, which is sure to end.
  if (collective.cuda_device() >= 0) work->Started(inner_work);
  inner_work->OnCompletion(
      [work, clockwork = clockwork_, number,
       weak = std::weak_ptr<Work>(inner_work)](const Status& status) {
        clockwork->Remove(number);
        const std::shared_ptr<Work> done = weak.lock();
        if (done != nullptr) work->SetSourceRank(done->source_rank());
        work->Complete(status);
      });
  return work;
}

void TimeoutWatchdog::Abort(Status cause) {
  clockwork_->Abort(cause);
  BackendDecorator::Abort(std::move(cause));
}

}  // namespace muster::dataplane
