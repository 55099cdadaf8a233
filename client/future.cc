#include "muster/future.h"

#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/continuations.h"
#include "client/control/deadline.h"
#include "client/control/fork_guard.h"
#include "client/control/throw.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::internal {

namespace {

// Call it before taking any lock, which may be held forever in a forked child.
void CheckIsHere(const Continuations& thread) {
  if (thread.is_here()) return;
  Throw(ErrorSource::kControl,
        FailedPreconditionError(absl::StrCat("the future", kIsParents)));
}

}  // namespace

FutureCore::FutureCore(std::shared_ptr<Continuations> thread)
    : thread_(std::move(thread)) {}

FutureCore::~FutureCore() = default;

bool FutureCore::Done() const {
  CheckIsHere(*thread_);
  MutexLock lock(mutex_);
  return done_;
}

std::exception_ptr FutureCore::Exception() const {
  CheckIsHere(*thread_);
  MutexLock lock(mutex_);
  return error_;
}

void FutureCore::RefuseOnOwnThread() const {
  if (!thread_->IsThisThread() || Done()) return;
  Throw(ErrorSource::kControl,
        FailedPreconditionError(
            "a continuation cannot wait for another future of its group, "
            "which would have to come after it"));
}

void FutureCore::Wait() const {
  CheckIsHere(*thread_);
  RefuseOnOwnThread();
  std::exception_ptr error;
  {
    MutexLock lock(mutex_);
    while (!done_) changed_.Wait(mutex_);
    error = error_;
  }
  if (error != nullptr) std::rethrow_exception(error);
}

bool FutureCore::WaitFor(std::chrono::milliseconds timeout) const {
  const Instant until =
      Deadline::After(CheckNotNegative(timeout), "WaitFor").at;
  CheckIsHere(*thread_);
  RefuseOnOwnThread();
  {
    MutexLock lock(mutex_);
    while (!done_) {
      if (!changed_.WaitUntil(mutex_, until) && !done_) return false;
    }
  }
  Wait();
  return true;
}

void FutureCore::CheckValue() const {
  if (!Done()) {
    Throw(ErrorSource::kControl,
          FailedPreconditionError(
              "Future needs to be completed before calling value(). Should "
              "call wait() before value()."));
  }
  Wait();
}

void FutureCore::OnDone(std::function<void()> task) {
  CheckIsHere(*thread_);
  {
    MutexLock lock(mutex_);
    if (!done_) {
      tasks_.push_back(std::move(task));
      return;
    }
  }
  thread_->Run(std::move(task));
}

void FutureCore::Complete(std::exception_ptr error) {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mutex_);
    error_ = std::move(error);
    done_ = true;
    tasks.swap(tasks_);
    changed_.NotifyAll();
  }
  for (const auto& task : tasks) task();
}

void LogContinuationError(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    LOG(ERROR) << "callback of a future failed: cause="
               << base::Quote(exception.what());
  } catch (...) {
    LOG(ERROR) << "callback of a future failed: cause=unknown";
  }
}

}  // namespace muster::internal
