#ifndef MUSTER_CLIENT_CONTROL_CANCELLER_H_
#define MUSTER_CLIENT_CONTROL_CANCELLER_H_

#include <utility>

#include "client/control/operation_table.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::internal {

// Canceller lets one thread end the calls of another thread: the running call
// and all later ones. Thread-safe.
class Canceller {
 public:
  void Cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (pending_ == nullptr) return;
    pending_->cancelled.store(true);
    pending_->batch_event->WakeAll();
  }

  bool cancelled() const {
    MutexLock lock(mutex_);
    return cancelled_;
  }

 private:
  friend class StreamSession;

  // The running call registers its operation here.
  void Begin(PendingOperationPtr pending) {
    MutexLock lock(mutex_);
    pending_ = std::move(pending);
    if (cancelled_) pending_->cancelled.store(true);
  }
  void End() {
    MutexLock lock(mutex_);
    pending_ = nullptr;
  }

  mutable Mutex mutex_;
  bool cancelled_ MUSTER_GUARDED_BY(mutex_) = false;
  PendingOperationPtr pending_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CANCELLER_H_
