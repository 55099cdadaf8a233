#ifndef MUSTER_BASE_MUTEX_H_
#define MUSTER_BASE_MUTEX_H_

#include <atomic>
#include <cerrno>
#include <condition_variable>

#include "muster/base/clock.h"
#include "muster/base/export.h"
#include "muster/base/thread_annotations.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace MUSTER_EXPORT muster {
namespace base {

namespace mutex_internal {

// Annotations for ThreadSanitizer, which then also checks the order of locks.
#if defined(__SANITIZE_THREAD__)
inline void IsMade(void* mutex) { __tsan_mutex_create(mutex, 0); }
inline void WillGo(void* mutex) { __tsan_mutex_destroy(mutex, 0); }
inline void WillLock(void* mutex) { __tsan_mutex_pre_lock(mutex, 0); }
inline void HasLocked(void* mutex) { __tsan_mutex_post_lock(mutex, 0, 0); }
inline void WillUnlock(void* mutex) { __tsan_mutex_pre_unlock(mutex, 0); }
inline void HasUnlocked(void* mutex) { __tsan_mutex_post_unlock(mutex, 0); }
#else
inline void IsMade(void*) {}
inline void WillGo(void*) {}
inline void WillLock(void*) {}
inline void HasLocked(void*) {}
inline void WillUnlock(void*) {}
inline void HasUnlocked(void*) {}
#endif

}  // namespace mutex_internal

// A mutex with clang's thread-safety annotations: that of U. Drepper, "Futexes
// Are Tricky" (2011). Locking and unlocking it when it is free takes 10
// instructions; std::mutex, whose calls are not inlined, takes 57. It is not
// absl::Mutex, because the packaged Abseil is not built for ThreadSanitizer,
// which then reports everything that the mutex guards as a race.
class MUSTER_LOCKABLE Mutex {
 public:
  Mutex() { mutex_internal::IsMade(this); }
  ~Mutex() { mutex_internal::WillGo(this); }
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() MUSTER_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_internal::WillLock(this);
    int free = kFree;
    if (!state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
      LockSlowly();
    }
    mutex_internal::HasLocked(this);
  }
  // A thread that waits for the mutex may take and destroy it before this
  // returns: notify_one uses only the address.
  void Unlock() MUSTER_UNLOCK_FUNCTION() {
    mutex_internal::WillUnlock(this);
    if (state_.exchange(kFree, std::memory_order_release) == kWaitedFor) {
      state_.notify_one();
    }
    mutex_internal::HasUnlocked(this);
  }

 private:
  // kWaitedFor: held, and some thread may be sleeping until it is free.
  enum State : int { kFree, kHeld, kWaitedFor };

  // A thread that has slept sets kWaitedFor, because others may still sleep.
  [[gnu::noinline]] void LockSlowly() {
    // Preserves errno, as std::mutex does.
    const int error = errno;
    while (state_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) {
      state_.wait(kWaitedFor, std::memory_order_relaxed);
    }
    errno = error;
  }

  std::atomic<int> state_{kFree};
};

// Holds a mutex for the duration of a scope.
class MUSTER_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MUSTER_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() MUSTER_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable for one mutex, which the caller of Wait holds. Wakes
// spuriously: wait in a loop. The constructor allocates, and waits and
// notifications lock an internal mutex: do not use it where latency matters.
class CondVar {
 public:
  void Wait(Mutex& mutex) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{mutex};
    condition_.wait(lockable);
  }

  // Returns false if `deadline` has passed.
  bool WaitUntil(Mutex& mutex, Instant deadline)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{mutex};
    return condition_.wait_until(lockable, deadline) ==
           std::cv_status::no_timeout;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  // Adapts Mutex to the standard library's names.
  struct Lockable {
    void lock() MUSTER_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }
    void unlock() MUSTER_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }
    Mutex& mutex;
  };

  std::condition_variable_any condition_;
};

}  // namespace base
}  // namespace muster

namespace MUSTER_EXPORT muster {

// Used so often that they need no prefix.
using base::CondVar;
using base::Mutex;
using base::MutexLock;

}  // namespace muster

#endif  // MUSTER_BASE_MUTEX_H_
