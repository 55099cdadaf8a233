#ifndef MUSTER_DATAPLANE_MUTEX_H_
#define MUSTER_DATAPLANE_MUTEX_H_

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "dataplane/instant.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace muster::dataplane {

// What ThreadSanitizer is told, which looks at the order of locks then.
namespace mutex_internal {
#if defined(__SANITIZE_THREAD__)
inline void WillLock(void* mutex) { __tsan_mutex_pre_lock(mutex, 0); }
inline void HasLocked(void* mutex) { __tsan_mutex_post_lock(mutex, 0, 0); }
inline void WillTryLock(void* mutex) {
  __tsan_mutex_pre_lock(mutex, __tsan_mutex_try_lock);
}
inline void HasTriedLock(void* mutex, bool is_taken) {
  __tsan_mutex_post_lock(
      mutex,
      __tsan_mutex_try_lock | (is_taken ? 0 : __tsan_mutex_try_lock_failed), 0);
}
inline void WillUnlock(void* mutex) { __tsan_mutex_pre_unlock(mutex, 0); }
inline void HasUnlocked(void* mutex) { __tsan_mutex_post_unlock(mutex, 0); }
#else
inline void WillLock(void*) {}
inline void HasLocked(void*) {}
inline void WillTryLock(void*) {}
inline void HasTriedLock(void*, bool) {}
inline void WillUnlock(void*) {}
inline void HasUnlocked(void*) {}
#endif
}  // namespace mutex_internal

// A mutex with clang's thread-safety annotations: that of U. Drepper, "Futexes
// Are Tricky" (2011). To lock and unlock one that is free takes 10 instructions
// here; std::mutex, whose calls are not inlined, takes 57, and a small
// collective has three. Not absl::Mutex: the packaged one is not built for
// ThreadSanitizer, which then reports everything that it guards as a race.
class ABSL_LOCKABLE Mutex {
 public:
#if defined(__SANITIZE_THREAD__)
  Mutex() { __tsan_mutex_create(this, 0); }
  ~Mutex() { __tsan_mutex_destroy(this, 0); }
#else
  Mutex() = default;
#endif
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_internal::WillLock(this);
    if (!Take()) LockSlowly();
    mutex_internal::HasLocked(this);
  }
  // Who waits for it may have it, and be rid of it, before it returns: the
  // standard library wakes by the address alone.
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    mutex_internal::WillUnlock(this);
    if (state_.exchange(kFree, std::memory_order_release) == kWaitedFor) {
      state_.notify_one();
    }
    mutex_internal::HasUnlocked(this);
  }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) {
    mutex_internal::WillTryLock(this);
    const bool is_taken = Take();
    mutex_internal::HasTriedLock(this, is_taken);
    return is_taken;
  }

 private:
  // kWaitedFor: held, and perhaps somebody sleeps until it is free.
  enum State : int { kFree, kHeld, kWaitedFor };

  bool Take() {
    int free = kFree;
    return state_.compare_exchange_strong(
        free, kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }

  // Who has slept takes it as waited for: others may sleep still.
  [[gnu::noinline]] void LockSlowly() {
    // As std::mutex, which leaves it alone.
    const int error = errno;
    while (state_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) {
      state_.wait(kWaitedFor, std::memory_order_relaxed);
    }
    errno = error;
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
// spuriously: wait in a loop. It allocates when it is made, and waits and
// notifications take a mutex of its own: not for what is in a hurry.
class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{mutex};
    condition_.wait(lockable);
  }

  // Returns false when `deadline` passed.
  bool WaitUntil(Mutex& mutex, Instant deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{mutex};
    return condition_.wait_until(lockable, deadline) ==
           std::cv_status::no_timeout;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  // By the standard library's names.
  struct Lockable {
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }
    Mutex& mutex;
  };

  std::condition_variable_any condition_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_MUTEX_H_
