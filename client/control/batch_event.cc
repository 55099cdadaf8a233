#include "client/control/batch_event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

namespace muster::internal {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t),
              "the kernel looks at the word itself");

uint32_t* GetWord(std::atomic<uint32_t>& value) {
  return reinterpret_cast<uint32_t*>(&value);
}

}  // namespace

void BatchEvent::Sleep(uint32_t seen, Instant until) {
  timespec at{};
  timespec* deadline = nullptr;
  if (until != Instant::max()) {
    // steady_clock is CLOCK_MONOTONIC, the clock of FUTEX_WAIT_BITSET.
    const auto since = until.time_since_epoch();
    const auto whole = std::chrono::floor<std::chrono::seconds>(since);
    at.tv_sec = whole.count();
    at.tv_nsec = std::chrono::nanoseconds(since - whole).count();
    deadline = &at;
  }
  // Sequentially consistent with WakeAll: either WakeAll sees this sleeper, or
  // the kernel sees the change of wakes_.
  sleepers_.fetch_add(1);
  syscall(SYS_futex, GetWord(wakes_), FUTEX_WAIT_BITSET_PRIVATE, seen, deadline,
          nullptr, FUTEX_BITSET_MATCH_ANY);
  sleepers_.fetch_sub(1);
}

void BatchEvent::WakeAll() {
  wakes_.fetch_add(1);
  if (sleepers_.load() == 0) return;
  syscall(SYS_futex, GetWord(wakes_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace muster::internal
