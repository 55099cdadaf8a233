// Helpers for a thread that waits for data from another process: spinning,
// yielding and sleeping.

#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_SPIN_WAIT_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_SPIN_WAIT_H_

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace muster::dataplane::cpu {

// The number of spins, about 2 us, before a waiter first yields its processor:
// data that other processors send at about the same time has arrived by then.
inline constexpr int kQuickSpins = 64;

// The total time that a waiter spins before it sleeps. A wake-up usually takes
// 25 to 50 us, so a peer that is late by that much causes no sleep.
inline constexpr std::chrono::microseconds kSpinTime{100};

// The spin time, adapted to earlier waits. If a wake-up takes longer than the
// other ranks spin, each sleep causes the next: the rank that wakes up is late,
// the ranks that wait for it sleep and are late in turn. So after a short wait
// that ended in a sleep, a waiter spins for twice that wait (as KVM's
// halt_poll_ns does for idle processors). A few long spins end such a chain. If
// they do not, the other ranks are late for other reasons and spinning is a
// waste: the budget shrinks again, and each time needs more sleeps to grow.
class SpinBudget {
 public:
  using Clock = std::chrono::steady_clock;

  // The largest budget. In a virtual machine a rank takes more than a
  // millisecond to wake 15 sleeping ranks.
  static constexpr std::chrono::microseconds kMost{2'000};
  // The budget shrinks after so many spins longer than kSpinTime in one period.
  static constexpr int kLongSpinsMax = 16;
  static constexpr std::chrono::seconds kPeriod{1};
  // After it has shrunk, it ignores so many sleeps before it grows again: the
  // first time, and at most.
  static constexpr int kIgnoredMin = 16;
  static constexpr int kIgnoredMax = 1'024;

  // From any thread. One thread at a time may call the functions below.
  std::chrono::nanoseconds value() const {
    return std::chrono::nanoseconds(
        nanoseconds_.load(std::memory_order_relaxed));
  }
  bool is_long() const { return value() > kSpinTime; }

  // Records a wait that began at `began` and ended in a sleep at `now`.
  void HasSlept(Clock::time_point began, Clock::time_point now) {
    if (ignored_ > 0) {
      --ignored_;
      return;
    }
    const std::chrono::nanoseconds waited = now - began;
    if (is_long()) {
      waited > kMost ? GiveUp() : CountLong(now);
    } else {
      long_spins_ = 0;
      since_ = now;
    }
    if (waited > kMost || ignored_ > 0) return;
    Set(std::clamp<std::chrono::nanoseconds>(2 * waited, kSpinTime, kMost));
  }
  // Records a wait that ended while spinning. Callers may omit it unless
  // is_long.
  void HasSeen(Clock::time_point began, Clock::time_point now) {
    if (is_long() && now - began > kSpinTime) CountLong(now);
  }

 private:
  void CountLong(Clock::time_point now) {
    if (now - since_ > kPeriod) {
      // A few long spins per period are normal.
      since_ = now;
      long_spins_ = 0;
      next_ignored_ = kIgnoredMin;
    }
    if (++long_spins_ >= kLongSpinsMax) GiveUp();
  }
  void GiveUp() {
    Set(kSpinTime);
    ignored_ = next_ignored_;
    next_ignored_ = std::min(2 * next_ignored_, kIgnoredMax);
  }
  void Set(std::chrono::nanoseconds value) {
    nanoseconds_.store(value.count(), std::memory_order_relaxed);
  }

  std::atomic<int64_t> nanoseconds_{
      std::chrono::nanoseconds(kSpinTime).count()};
  // Sleeps that are still ignored, and the number to ignore next time.
  int ignored_ = 0;
  int next_ignored_ = kIgnoredMin;
  // The number of long spins since `since_`.
  int long_spins_ = 0;
  Clock::time_point since_ = {};
};

// Call it between two polls.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// A polling thread yields its processor between two polls (sched_yield(2)).
// Another polling thread gives it back within microseconds. A computing process
// keeps it for a time slice, and the awaited data comes meanwhile. After a
// yield of at least kLong, the thread does not yield for kPauseFactor times as
// long: it polls until its spin time is over and then sleeps, because the
// system gives a processor to a thread that wakes up much sooner than to one
// that has yielded. From any thread.
class Yielding {
 public:
  using Clock = std::chrono::steady_clock;
  using Yield = int (*)();

  // Ranks that share a processor yield for less; time slices are not shorter.
  static constexpr std::chrono::milliseconds kLong{1};
  // Keeps the share of long yields small.
  static constexpr int kPauseFactor = 16;

  // Tests pass another `yield`.
  explicit Yielding(Yield yield = sched_yield) : yield_(yield) {}

  bool is_paused(Clock::time_point now) const {
    return now.time_since_epoch().count() <
           paused_until_.load(std::memory_order_relaxed);
  }

  // Yields, unless yielding is paused at `now`. Returns the time afterwards.
  Clock::time_point GiveWay(Clock::time_point now) {
    if (is_paused(now)) {
      Relax();
      return Clock::now();
    }
    yield_();
    const Clock::time_point end = Clock::now();
    HasYielded(now, end);
    return end;
  }

  void HasYielded(Clock::time_point began, Clock::time_point end) {
    if (end - began < kLong) return;
    paused_until_.store(
        (end + kPauseFactor * (end - began)).time_since_epoch().count(),
        std::memory_order_relaxed);
  }

 private:
  const Yield yield_;
  // In ticks of the clock.
  std::atomic<Clock::rep> paused_until_{0};
};

// futex(2) on a word in shared memory: FUTEX_WAIT while it is `value`, for
// `time` or, if null, until woken; or FUTEX_WAKE of `value` sleepers.
inline void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value,
                  const timespec* time = nullptr) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, time,
          nullptr, 0);
}

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_SPIN_WAIT_H_
