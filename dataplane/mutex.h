#ifndef MUSTER_DATAPLANE_MUTEX_H_
#define MUSTER_DATAPLANE_MUTEX_H_

#include <atomic>
#include <condition_variable>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "dataplane/instant.h"

namespace muster::dataplane {

// A mutex with clang's thread-safety annotations. One pair of a group's small
// collective takes a quarter of the instructions of std::mutex's here, whose
// calls are not inlined: the mutex of U. Drepper, "Futexes Are Tricky" (2011).
// Not absl::Mutex: the packaged one is not built for ThreadSanitizer, which
// then reports everything that it guards as a race.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (!TryLock()) LockSlowly();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    if (state_.exchange(kFree, std::memory_order_release) == kWaitedFor) {
      state_.notify_one();
    }
  }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) {
    int free = kFree;
    return state_.compare_exchange_strong(
        free, kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }

  // For the standard library, which names them so.
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { Lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { Unlock(); }

 private:
  // kWaitedFor: held, and perhaps somebody sleeps until it is free.
  enum State : int { kFree, kHeld, kWaitedFor };

  // Who has slept takes it as waited for: others may sleep still.
  [[gnu::noinline]] void LockSlowly() {
    while (state_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) {
      state_.wait(kWaitedFor, std::memory_order_relaxed);
    }
  }

  std::atomic<int> state_{kFree};
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A lock that can be let go before it ends, also by whoever has it from its
// owner: the analysis does not follow that. What is still to be done under it
// can be left for then.
class ReleasableLock {
 public:
  explicit ReleasableLock(Mutex& mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(&mutex) {
    mutex_->Lock();
  }
  ~ReleasableLock() { Release(); }
  ReleasableLock(const ReleasableLock&) = delete;
  ReleasableLock& operator=(const ReleasableLock&) = delete;

  // Calls `last`, which lives until then and does not throw, before the lock is
  // let go, unless DropLast is called. Only one at a time, of whoever has it.
  void BeforeRelease(absl::FunctionRef<void()> last) { last_.emplace(last); }

  // Calls it now, if it was not called yet.
  void CallLast() {
    if (!last_.has_value()) return;
    const absl::FunctionRef<void()> last = *last_;
    last_.reset();
    last();
  }

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
  void Release() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (mutex_ == nullptr) return;
    CallLast();
    if (inner_.has_value()) (*inner_)();
    inner_.reset();
    mutex_->Unlock();
    mutex_ = nullptr;
  }

  bool is_held() const { return mutex_ != nullptr; }

 private:
  Mutex* mutex_;
  std::optional<absl::FunctionRef<void()>> last_;
  std::optional<absl::FunctionRef<void()>> inner_;
};

// A condition variable for one Mutex, which the caller of Wait holds. Wakes
// spuriously: wait in a loop.
class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    condition_.wait(mutex);
  }

  // Returns false when `deadline` passed.
  bool WaitUntil(Mutex& mutex, Instant deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return condition_.wait_until(mutex, deadline) == std::cv_status::no_timeout;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_MUTEX_H_
