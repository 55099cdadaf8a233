// How a thread looks for what one of another process may bring at any moment,
// and sleeps.

#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_LOOKING_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_LOOKING_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace muster::dataplane::gloo_internal {

// How often it looks, 2 us or so, before it gives way to others: what comes
// from other processors at about the same time is there by then.
inline constexpr int kQuickLooks = 64;

// How long it looks in all before it sleeps. Waking up mostly takes 25 to 50
// us: somebody who is that late is waited for without a sleep.
inline constexpr std::chrono::microseconds kLookTime{100};

// The same where that is learnt from the waits before. Where waking up takes
// longer than others look, one sleep would be followed by another for ever: who
// wakes up comes late, those who wait for him sleep, and are late in their
// turn. So who has slept, and for what came soon, looks for twice as long as
// that took; and who has slept for long, for kLookTime again. (A host does so
// with its guests' processors that have nothing to do: KVM's halt_poll_ns.)
class LookTime {
 public:
  // Up to so much. In a virtual machine a rank for which 15 others sleep takes
  // more than a millisecond to ring them all.
  static constexpr std::chrono::microseconds kMost{2'000};

  std::chrono::nanoseconds value() const {
    return std::chrono::nanoseconds(
        nanoseconds_.load(std::memory_order_relaxed));
  }

  // A wait has lasted so long, and ended in a sleep. From any thread.
  void HasSlept(std::chrono::nanoseconds waited) {
    const std::chrono::nanoseconds next =
        waited > kMost ? std::chrono::nanoseconds(kLookTime)
                       : std::clamp<std::chrono::nanoseconds>(2 * waited,
                                                              kLookTime, kMost);
    nanoseconds_.store(next.count(), std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> nanoseconds_{
      std::chrono::nanoseconds(kLookTime).count()};
};

// Between two looks.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// futex(2) of a word in memory that processes share: FUTEX_WAIT, if it is
// `value`, for `time` or, null, until it is woken; or FUTEX_WAKE, of `value`
// sleepers.
inline void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value,
                  const timespec* time = nullptr) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, time,
          nullptr, 0);
}

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_LOOKING_H_
