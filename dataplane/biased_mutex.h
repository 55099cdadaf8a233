#ifndef MUSTER_DATAPLANE_BIASED_MUTEX_H_
#define MUSTER_DATAPLANE_BIASED_MUTEX_H_

#include <atomic>
#include <cassert>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "dataplane/mutex.h"

namespace muster::dataplane {

// A mutex for one thread that takes it again and again, and others that do so
// seldom. It comes to be biased towards that one, its home: who locks and
// unlocks it from then on without a locked instruction. Those take longer than
// the rest of it, and each waits until all that the thread has stored is with
// its cache: what it has just shown to another rank, too. A small collective
// has three such locks.
//
// The home says that it is inside, and looks whether the mutex is still biased;
// another thread says that it is not, and looks whether the home is inside
// (T. Dekker's algorithm, in Dijkstra's "Cooperating sequential processes",
// 1965). Between the two of each belongs a fence, and the home has none:
// the other thread has the system let every thread of the process pass one
// (membarrier(2)), which takes from one microsecond to some tens. So it is
// biased only when its home has taken it kStreak times in a row. Where there is
// no membarrier it is never biased. After D. Dice, H. Huang and M. Yang,
// "Asymmetric Dekker Synchronization" (2001), and biased locking in Java
// machines. biased_mutex.pml is a model of it.
//
// Who comes first so often is the home for good: a thread that was about to go
// inside, and has not run since, would not notice that it is another one.
//
// Unlike Mutex, it must live until Unlock has returned; and a thread that locks
// it twice is not stopped, but in a debug build.
class ABSL_LOCKABLE BiasedMutex {
 public:
#if defined(__SANITIZE_THREAD__)
  BiasedMutex() { __tsan_mutex_create(this, 0); }
  ~BiasedMutex() { __tsan_mutex_destroy(this, 0); }
#else
  BiasedMutex() = default;
#endif
  BiasedMutex(const BiasedMutex&) = delete;
  BiasedMutex& operator=(const BiasedMutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_internal::WillLock(this);
    if (!Enter()) LockSlowly();
    mutex_internal::HasLocked(this);
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    mutex_internal::WillUnlock(this);
    if (is_entered_) {
      is_entered_ = false;
      Leave();
    } else {
      bare_.Unlock();
    }
    mutex_internal::HasUnlocked(this);
  }

  // So often in a row its home must have had it to be biased: the fence costs
  // some thousand locked instructions.
  static constexpr int kStreak = 2000;

  // Of a caller that has it: there is no other thread's way to see it.
  bool is_biased() const { return is_entered_; }

 private:
  // No two threads have the same at a time. Who has that of one that has ended
  // takes its place.
  static uintptr_t ThisThread() {
    return reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  }

  // Of the home. False: it is not biased.
  bool Enter() {
    if (home_.load(std::memory_order_relaxed) != ThisThread() ||
        !is_biased_.load(std::memory_order_relaxed)) {
      return false;
    }
    assert(!is_entered_);
    is_inside_.store(1, std::memory_order_relaxed);
    // For the compiler; for the processor: see Revoke.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (is_biased_.load(std::memory_order_relaxed)) [[likely]] {
      is_entered_ = true;
      return true;
    }
    Leave();
    return false;
  }
  void Leave() {
    is_inside_.store(0, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (!is_biased_.load(std::memory_order_relaxed)) [[unlikely]] {
      WakeRevoker();
    }
  }
  void WakeRevoker();
  void LockSlowly();
  // It is biased no more, and the home is not inside. Of who has bare_.
  void Revoke();
  // The home has bare_, and has had it often enough.
  void Bias();

  // 0: there is none yet.
  std::atomic<uintptr_t> home_{0};
  // Changes while bare_ is held.
  std::atomic<bool> is_biased_{false};
  // The holder has it without bare_.
  bool is_entered_ = false;
  // The home's alone: it is inside, or about to be. An int as futexes are.
  std::atomic<int> is_inside_{0};

  // Taken by all others, and by the home when it is not biased.
  mutex_internal::BareMutex bare_;
  // By holders of that: who had it last, and so often in a row.
  uintptr_t last_ = 0;
  int streak_ = 0;
};

// A lock that can be let go before it ends, also by whoever has it from its
// owner: the analysis does not follow that. What is still to be done under it
// can be left for then.
class ReleasableLock {
 public:
  explicit ReleasableLock(BiasedMutex& mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS
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
  BiasedMutex* mutex_;
  std::optional<absl::FunctionRef<void()>> last_;
  std::optional<absl::FunctionRef<void()>> inner_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_BIASED_MUTEX_H_
