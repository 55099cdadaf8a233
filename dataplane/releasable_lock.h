#ifndef MUSTER_DATAPLANE_RELEASABLE_LOCK_H_
#define MUSTER_DATAPLANE_RELEASABLE_LOCK_H_

#include <optional>

#include "absl/functional/function_ref.h"
#include "base/mutex.h"
#include "base/thread_annotations.h"

namespace muster::dataplane {

// A scoped lock that can be released early, also by a function to which its
// owner passes it. (The thread-safety analysis cannot follow that.) It can run
// callbacks at its release.
class ReleasableLock {
 public:
  explicit ReleasableLock(Mutex& mutex) MUSTER_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(&mutex) {
    mutex_->Lock();
  }
  ~ReleasableLock() { Release(); }
  ReleasableLock(const ReleasableLock&) = delete;
  ReleasableLock& operator=(const ReleasableLock&) = delete;

  // Calls `last` before the release, unless DropLast is called first. `last`
  // must live until then and must not throw. At most one at a time.
  void BeforeRelease(absl::FunctionRef<void()> last) { last_.emplace(last); }

  // Calls `last` now if it was not called yet.
  void CallLast() {
    if (!last_.has_value()) return;
    const absl::FunctionRef<void()> last = *last_;
    last_.reset();
    last();
  }

  // Cancels `last`: the owner does its work in another way. Returns false if it
  // was already called.
  bool DropLast() {
    const bool dropped = last_.has_value();
    last_.reset();
    return dropped;
  }

  // Calls `inner` before the release, after `last`, unless KeepInner is called
  // first. `inner` releases a lock that was taken inside this one. It must live
  // until then and must not throw.
  void ReleaseWith(absl::FunctionRef<void()> inner) { inner_.emplace(inner); }
  void KeepInner() { inner_.reset(); }

  // Calls after the first one do nothing.
  [[gnu::always_inline]] void Release() MUSTER_NO_THREAD_SAFETY_ANALYSIS {
    if (mutex_ == nullptr) return;
    if (last_.has_value() || inner_.has_value()) CallLeft();
    mutex_->Unlock();
    mutex_ = nullptr;
  }

  bool is_held() const { return mutex_ != nullptr; }

 private:
  // Not inlined: callbacks are rarely left at the release.
  [[gnu::noinline]] void CallLeft() {
    CallLast();
    if (inner_.has_value()) (*inner_)();
    inner_.reset();
  }

  Mutex* mutex_;
  std::optional<absl::FunctionRef<void()>> last_;
  std::optional<absl::FunctionRef<void()>> inner_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_RELEASABLE_LOCK_H_
