#include "muster/dataplane/work.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::dataplane {

PromisedWork::PromisedWork(std::string description)
    : description_(std::move(description)) {}

bool PromisedWork::Complete(const Status& status) {
  std::vector<Callback> callbacks;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kRunning) return false;
    state_ = State::kCompleting;
    status_ = status;
    callbacks.swap(callbacks_);
  }
  // Callbacks run before any waiter wakes: when a waiter sees that this work
  // failed, its group must already be poisoned and its progress counted. A
  // callback may add another callback.
  for (;;) {
    for (Callback& callback : callbacks) callback(status);
    callbacks.clear();
    MutexLock lock(mutex_);
    if (callbacks_.empty()) {
      state_ = State::kCompleted;
      completed_.store(true, std::memory_order_release);
      // Notifies under the lock: a waiter may destroy this object as soon as it
      // has the lock.
      if (condition_ != nullptr) condition_->NotifyAll();
      return true;
    }
    callbacks.swap(callbacks_);
  }
}

Status PromisedWork::Wait(Instant deadline) {
  MutexLock lock(mutex_);
  while (state_ != State::kCompleted) {
    if (condition_ == nullptr) condition_ = std::make_unique<CondVar>();
    if (deadline == Instant::max()) {
      condition_->Wait(mutex_);
    } else if (!condition_->WaitUntil(mutex_, deadline) &&
               state_ != State::kCompleted) {
      return DeadlineExceededError(
          absl::StrCat(description(),
                       ": not complete when the wait for it "
                       "timed out"));
    }
  }
  return status_;
}

bool PromisedWork::IsCompleted() const {
  return completed_.load(std::memory_order_acquire);
}

Status PromisedWork::status() const {
  MutexLock lock(mutex_);
  return state_ == State::kCompleted ? status_ : OkStatus();
}

int PromisedWork::source_rank() const {
  MutexLock lock(mutex_);
  const bool succeeded = state_ != State::kRunning && status_.ok();
  return succeeded ? source_rank_.load() : -1;
}

void PromisedWork::OnCompletion(Callback callback) {
  Status status;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kCompleted) {
      callbacks_.push_back(std::move(callback));
      return;
    }
    status = status_;
  }
  callback(status);
}

void ProxyWork::Started(std::shared_ptr<Work> inner) {
  MutexLock lock(mutex_);
  if (IsCompleted()) return;
  inner_ = std::move(inner);
  changed_.NotifyAll();
}

bool ProxyWork::Complete(const Status& status) {
  const bool first = PromisedWork::Complete(status);
  std::shared_ptr<Work> inner;
  MutexLock lock(mutex_);
  inner.swap(inner_);
  changed_.NotifyAll();
  return first;
}

Status ProxyWork::Synchronize() {
  std::shared_ptr<Work> inner;
  {
    MutexLock lock(mutex_);
    while (inner_ == nullptr && !IsCompleted()) changed_.Wait(mutex_);
    inner = inner_;
  }
  if (inner == nullptr) return Wait();
  const Status synchronized = inner->Synchronize();
  // If `inner` is complete, this work completes now. Waits for that, because
  // its callbacks may use the tensors.
  return inner->IsCompleted() ? Wait() : synchronized;
}

}  // namespace muster::dataplane
