// Spinning and sleeping while a thread waits for data from another process.

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

// The total time that a waiter spins before it sleeps. Waking up usually takes
// 25 to 50 us, so a peer that is late by that much does not cause a sleep.
inline constexpr std::chrono::microseconds kSpinTime{100};

// The spin time, adapted to earlier waits. Where waking up takes longer than
// others spin, one sleep would cause the next for ever: a rank that wakes up
// arrives late, those that wait for it sleep, and are late in turn. So after a
// sleep for something that came soon, a waiter spins for twice as long as that
// took (as KVM's halt_poll_ns does for idle processors). A few long spins end
// such a chain. If they do not, the others are late for other reasons and
// spinning is a waste: the budget shrinks again, and after that grows only
// after more sleeps each time.
class SpinBudget {
 public:
  using Clock = std::chrono::steady_clock;

  // It grows up to so much. In a virtual machine a rank for which 15 others
  // sleep takes more than a millisecond to ring them all.
  static constexpr std::chrono::microseconds kMost{2'000};
  // It gives up after so many looks of more than kSpinTime in such a time.
  static constexpr int kLongSpinsMax = 16;
  static constexpr std::chrono::seconds kPeriod{1};
  // After so many sleeps it grows again: at first, and at the most.
  static constexpr int kIgnoredMin = 16;
  static constexpr int kIgnoredMax = 1'024;

  // From any thread. The others by one at a time.
  std::chrono::nanoseconds value() const {
    return std::chrono::nanoseconds(
        nanoseconds_.load(std::memory_order_relaxed));
  }
  bool is_long() const { return value() > kSpinTime; }

  // A wait that `began` has ended `now`, in a sleep.
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
  // The same, in a look. It need not be told if it is not long.
  void HasSeen(Clock::time_point began, Clock::time_point now) {
    if (is_long() && now - began > kSpinTime) CountLong(now);
  }

 private:
  void CountLong(Clock::time_point now) {
    if (now - since_ > kPeriod) {
      // Some are late now and then.
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
  // Sleeps from which nothing is learnt: still, and the next time.
  int ignored_ = 0;
  int next_ignored_ = kIgnoredMin;
  // Long looks since then.
  int long_spins_ = 0;
  Clock::time_point since_ = {};
};

// Between two looks.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// A thread that looks yields its processor between two looks (sched_yield(2)).
// Another one that looks, too, gives it back within microseconds. A process
// that computes keeps it for a time slice, and what is looked for comes
// meanwhile. After a yield that took so long the thread keeps its processor,
// for kPauseFactor times as long: it looks until its time for that is over, and
// then sleeps, as the system gives a processor to a thread that wakes up much
// sooner than to one that has yielded. From any thread.
class Yielding {
 public:
  using Clock = std::chrono::steady_clock;
  using Yield = int (*)();

  // Ranks that share a processor take less, and slices are not shorter.
  static constexpr std::chrono::milliseconds kLong{1};
  // Long yields take a small part of the time.
  static constexpr int kPauseFactor = 16;

  // `yield` is another one in tests.
  explicit Yielding(Yield yield = sched_yield) : yield_(yield) {}

  bool is_paused(Clock::time_point now) const {
    return now.time_since_epoch().count() <
           paused_until_.load(std::memory_order_relaxed);
  }

  // Yields, unless that is paused `now`. Returns what the time is then.
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
  // In the clock's own count.
  std::atomic<Clock::rep> paused_until_{0};
};

// futex(2) of a word in memory that processes share: FUTEX_WAIT, if it is
// `value`, for `time` or, null, until it is woken; or FUTEX_WAKE, of `value`
// sleepers.
inline void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value,
                  const timespec* time = nullptr) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, time,
          nullptr, 0);
}

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_SPIN_WAIT_H_
