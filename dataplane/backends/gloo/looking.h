// How a thread looks for what one of another process may bring at any moment,
// and sleeps.

#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_LOOKING_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_LOOKING_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace muster::dataplane::gloo_internal {

// How often it looks, 2 us or so, before it gives way to others: what comes
// from other processors at about the same time is there by then.
inline constexpr int kQuickLooks = 64;

// How long it looks in all before it sleeps. Waking up takes 25 to 50 us:
// somebody who is that late is waited for without a sleep.
inline constexpr std::chrono::microseconds kLookTime{100};

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
