#ifndef MUSTER_DATAPLANE_RELEASABLE_LOCK_H_
#define MUSTER_DATAPLANE_RELEASABLE_LOCK_H_

#include <optional>

#include "absl/functional/function_ref.h"
#include "base/thread_annotations.h"
#include "dataplane/biased_mutex.h"

namespace muster::dataplane {

// A lock that can be let go before it ends, also by whoever has it from its
// owner: the analysis does not follow that. What is still to be done under it
// can be left for then. Its owner is somebody who may be the mutex's home.
class ReleasableLock {
 public:
  explicit ReleasableLock(BiasedMutex& mutex) MUSTER_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(&mutex) {
    mutex_->LockOften();
  }
  ~ReleasableLock() { Release(); }
  ReleasableLock(const ReleasableLock&) = delete;
  ReleasableLock& operator=(const ReleasableLock&) = delete;

  // Calls `last`, which lives until then and does not throw, before the lock is
  // let go, unless DropLast is called. Only one at a time, of whoever has it.
  void BeforeRelease(absl::FunctionRef<void()> last) { last_.emplace(last); }

  // Calls it now, if it was not called yet. Whoever is about to wait with the
  // lock held, or has waited, calls this, or NoteWait.
  void CallLast() {
    has_waited_ = true;
    if (!last_.has_value()) return;
    const absl::FunctionRef<void()> last = *last_;
    last_.reset();
    last();
  }

  // The same where that is left until the lock is let go, or for its owner: a
  // short wait takes less time.
  void NoteWait() { has_waited_ = true; }

  // It is not called any more: its owner does in another way what it was for.
  // False: it was called.
  bool DropLast() {
    const bool dropped = last_.has_value();
    last_.reset();
    return dropped;
  }

  // Calls `inner`, which lets go of what is held inside this lock, before that
  // is let go itself, and after `last`, of which the same holds; until
  // KeepInner.
  void ReleaseWith(absl::FunctionRef<void()> inner) { inner_.emplace(inner); }
  void KeepInner() { inner_.reset(); }

  // Only the first call counts.
  [[gnu::always_inline]] void Release() MUSTER_NO_THREAD_SAFETY_ANALYSIS {
    if (mutex_ == nullptr) return;
    if (last_.has_value() || inner_.has_value()) CallLeft();
    mutex_->Unlock();
    mutex_ = nullptr;
  }

  bool is_held() const { return mutex_ != nullptr; }
  bool has_waited() const { return has_waited_; }

 private:
  // Not inlined: few that let go have something left.
  [[gnu::noinline]] void CallLeft() {
    CallLast();
    if (inner_.has_value()) (*inner_)();
    inner_.reset();
  }

  BiasedMutex* mutex_;
  bool has_waited_ = false;
  std::optional<absl::FunctionRef<void()>> last_;
  std::optional<absl::FunctionRef<void()>> inner_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_RELEASABLE_LOCK_H_
