#ifndef MUSTER_DATAPLANE_BIASED_MUTEX_H_
#define MUSTER_DATAPLANE_BIASED_MUTEX_H_

#include <atomic>
#include <cstdint>

#include "base/mutex.h"
#include "base/thread_annotations.h"

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
// biased only when its home has taken it kStreak times in a row, by LockOften.
// Where there is no membarrier it is never biased. After D. Dice, H. Huang and
// M. Yang, "Asymmetric Dekker Synchronization" (2001), and biased locking in
// Java machines. biased_mutex.pml is a model of it.
//
// The first thread that has it so often in a row is its home for good. Were
// another one to take its place, the first might have stopped between its two
// looks, and both would be inside.
//
// Unlike Mutex, it must live until Unlock has returned. And a thread that locks
// it twice does not hang: the program fails if it is biased.
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
  // The same of who may be its home: not of a thread in the background, which
  // may have it often in a row while nobody else does anything.
  void LockOften() MUSTER_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_internal::WillLock(this);
    if (!Enter()) LockSlowly(/*often=*/true);
    mutex_internal::HasLocked(this);
  }
  void Unlock() MUSTER_UNLOCK_FUNCTION() {
    mutex_internal::WillUnlock(this);
    if (is_entered_) {
      // Before the next one may have it, who reads it.
      is_entered_ = false;
      Leave();
    } else {
      bare_.Unlock();
    }
    mutex_internal::HasUnlocked(this);
  }

  // So often in a row its home must have had it to be biased: so many locked
  // instructions cost about as much as the fence does at the worst.
  static constexpr int kStreak = 4000;

  // Whether its holder, who asks, has it by the bias: for tests.
  bool is_biased() const { return is_entered_; }

 private:
  // Another one for each thread there is. A new thread may have that of one
  // that has ended, and is the home in its place then.
  static uintptr_t ThisThread() {
    return reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  }

  // False: the caller is not its home, or it is not biased.
  bool Enter() {
    if (home_.load(std::memory_order_relaxed) != ThisThread() ||
        !is_biased_.load(std::memory_order_relaxed)) {
      return false;
    }
    if (is_entered_) [[unlikely]]
      LockedTwice();
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
  // Who takes the bias away may sleep until then.
  void Leave() {
    is_inside_.store(0, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (!is_biased_.load(std::memory_order_relaxed)) [[unlikely]] {
      WakeRevoker();
    }
  }
  void WakeRevoker();
  [[noreturn]] static void LockedTwice();
  // Once in a process, as it may take a millisecond: what fences need.
  static void Prepare();
  void LockSlowly(bool often);
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
  // By holders of that: who had it last, and so often in a row by LockOften.
  uintptr_t last_ = 0;
  int streak_ = 0;
};

// By LockOften.
using OftenLock = MutexLock<BiasedMutex, &BiasedMutex::LockOften>;

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_BIASED_MUTEX_H_
