#ifndef MUSTER_DATAPLANE_BIASED_MUTEX_H_
#define MUSTER_DATAPLANE_BIASED_MUTEX_H_

#include <atomic>
#include <cstdint>

#include "base/mutex.h"
#include "base/thread_annotations.h"

namespace muster::dataplane {

// A mutex that one thread takes again and again and other threads take seldom.
// It becomes biased towards that thread, its home, which from then on locks and
// unlocks it without an atomic read-modify-write instruction. Those take most
// of the time of a lock, and each waits until the thread's earlier stores are
// in its cache, also data just published to another rank. A small collective
// takes three such locks.
//
// The home sets "inside" and then checks that the mutex is still biased;
// another thread clears the bias and then checks whether the home is inside (T.
// Dekker's algorithm, in Dijkstra's "Cooperating sequential processes", 1965).
// Each needs a fence between the two steps. The home has none: the other thread
// calls membarrier(2), which makes every thread of the process pass one and
// takes from one to some tens of microseconds. So the mutex becomes biased only
// after one thread has taken it kStreak times in a row with LockOften, and
// never on a system without membarrier. After D. Dice, H. Huang and M. Yang,
// "Asymmetric Dekker Synchronization" (2001), and biased locking in Java
// machines. biased_mutex.pml is a model of it.
//
// The first such thread stays the home for good. If another thread took its
// place while the first one was between its two steps, both could be inside.
//
// Unlike Mutex, it must live until Unlock has returned, and a thread that locks
// it twice ends the program (if it is biased) instead of hanging.
class MUSTER_LOCKABLE BiasedMutex {
 public:
  BiasedMutex() {
    mutex_internal::IsMade(this);
    Prepare();
  }
  ~BiasedMutex() { mutex_internal::WillGo(this); }
  BiasedMutex(const BiasedMutex&) = delete;
  BiasedMutex& operator=(const BiasedMutex&) = delete;

  void Lock() MUSTER_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_internal::WillLock(this);
    if (!Enter()) LockSlowly(/*often=*/false);
    mutex_internal::HasLocked(this);
  }
  // Lock for threads that may become the home. Not for background threads,
  // which may lock it often in a row while no other thread does anything.
  void LockOften() MUSTER_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_internal::WillLock(this);
    if (!Enter()) LockSlowly(/*often=*/true);
    mutex_internal::HasLocked(this);
  }
  void Unlock() MUSTER_UNLOCK_FUNCTION() {
    mutex_internal::WillUnlock(this);
    if (is_entered_) {
      // Cleared before another thread can lock, because Unlock of that thread
      // reads it.
      is_entered_ = false;
      Leave();
    } else {
      bare_.Unlock();
    }
    mutex_internal::HasUnlocked(this);
  }

  // A thread must lock it so often in a row before it is biased: the saved
  // instructions then cost about as much as the slowest fence.
  static constexpr int kStreak = 4000;

  // For tests. Called by the holder: whether it has the mutex by the bias.
  bool is_biased() const { return is_entered_; }

 private:
  // Different for all living threads. A new thread may get the value of an
  // ended one and is then the home in its place.
  static uintptr_t ThisThread() {
    return reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  }

  // Locks by the bias. False if the caller is not the home or there is no bias.
  bool Enter() {
    if (home_.load(std::memory_order_relaxed) != ThisThread() ||
        !is_biased_.load(std::memory_order_relaxed)) {
      return false;
    }
    if (is_entered_) [[unlikely]]
      LockedTwice();
    is_inside_.store(1, std::memory_order_relaxed);
    // A fence for the compiler. The processor's fence is in Revoke.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (is_biased_.load(std::memory_order_relaxed)) [[likely]] {
      is_entered_ = true;
      return true;
    }
    Leave();
    return false;
  }
  // A thread in Revoke may sleep until the home leaves.
  void Leave() {
    is_inside_.store(0, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (!is_biased_.load(std::memory_order_relaxed)) [[unlikely]] {
      WakeRevoker();
    }
  }
  void WakeRevoker();
  [[noreturn]] static void LockedTwice();
  // Registers this process for membarrier, which may take a millisecond, once.
  static void Prepare();
  void LockSlowly(bool often);
  // Removes the bias and waits until the home is not inside. Requires bare_.
  void Revoke();
  // Makes the calling thread, which holds bare_, the home.
  void Bias();

  // 0: no home yet.
  std::atomic<uintptr_t> home_{0};
  // Written only by a holder of bare_.
  std::atomic<bool> is_biased_{false};
  // The holder has the mutex by the bias, without bare_.
  bool is_entered_ = false;
  // Written by the home: 1 while it is inside or about to be. An int, as in
  // futexes.
  std::atomic<int> is_inside_{0};

  // Taken by all other threads, and by the home while there is no bias.
  mutex_internal::BareMutex bare_;
  // Guarded by bare_: its last holder, and how many of that thread's last locks
  // in a row used LockOften.
  uintptr_t last_ = 0;
  int streak_ = 0;
};

// MutexLock with LockOften.
using OftenLock = MutexLock<BiasedMutex, &BiasedMutex::LockOften>;

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_BIASED_MUTEX_H_
