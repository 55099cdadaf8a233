#include "dataplane/quick_clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace muster::dataplane {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kSpan = std::chrono::milliseconds(1);

// The shortest time from which a rate is computed: long enough for the rates of
// two spans to agree in spite of the width below.
constexpr nanoseconds kSpanMin = kSpan / 2;

// Two readings of the counter around a reading of the Clock are some 80 ticks
// apart. If they are farther apart than this, the thread was interrupted and
// the time in between is too uncertain.
constexpr uint64_t kWidthTicksMax = 1024;

// Rates that differ by less than one part in this many are the same. That
// covers the Clock's adjustment by NTP (500 ppm) and a microsecond in a span.
constexpr uint64_t kSameRate = 1024;

// Every processor's counter ticks at least every 16 ns and at most 16 times per
// ns.
constexpr uint64_t kRateLimit = 16;

// The kernel's names of the clock sources that it computes from the counter,
// directly or with the data that KVM and Hyper-V give a guest.
constexpr std::string_view kCycleCounterSources[] = {
    "tsc\n", "kvm-clock\n", "hyperv_clocksource_tsc_page\n"};

bool IsSameRate(uint64_t a, uint64_t b) {
  return (a > b ? a - b : b - a) < b / kSameRate;
}

}  // namespace

void QuickClock::Renew(uint64_t before, Instant time, uint64_t after,
                       std::atomic<uint64_t>& known_rate) {
  const uint64_t width = after - before;
  if (width > kWidthTicksMax) return;
  const uint64_t now = before + width / 2;
  const nanoseconds passed = time - anchor_time_;
  const uint64_t ticks = now - anchor_ticks_;

  // Only at first: later this thread's own rate is newer than the shared one.
  const uint64_t learned =
      rate_ == 0 ? known_rate.load(std::memory_order_relaxed) : 0;
  bool trusted = learned != 0;
  if (trusted) {
    rate_ = learned;
  } else {
    const bool is_long = passed >= kSpanMin;
    if (span_ticks_ == 0 && !is_long) return;
    const auto count = static_cast<uint64_t>(passed.count());
    // Otherwise the counter jumped or there was no anchor.
    if (is_long && count / kRateLimit <= ticks && ticks / kRateLimit <= count) {
      const auto found = static_cast<uint64_t>(
          static_cast<double>(count) * 0x1p32 / static_cast<double>(ticks));
      // Compares with the last rate: one rate alone may hide a small jump.
      trusted = IsSameRate(found, rate_);
      rate_ = found;
    }
  }
  anchor_ticks_ = now;
  anchor_time_ = time;
  span_ticks_ = 0;
  if (!trusted) return;
  span_ticks_ = (static_cast<uint64_t>(kSpan.count()) << kRateBits) / rate_;
  known_rate.store(rate_, std::memory_order_relaxed);
}

bool NamesCycleCounter(const char* path) {
  // Without a stream, which takes locks that a fork may leave locked.
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char name[64] = {};
  const ssize_t length = read(file, name, sizeof(name));
  close(file);
  return length > 0 && std::ranges::count(kCycleCounterSources,
                                          std::string_view(name, length)) > 0;
}

#if defined(__x86_64__)
namespace {

// CPUID: bit 8 says that the counter's rate never changes.
bool IsInvariant() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && ((d >> 8) & 1) != 0;
}

struct CycleCounter {
  // No lock, which a fork could leave locked: threads that call it at first
  // each find out by themselves.
  static bool IsUsable() {
    enum : int { kUnknown, kNo, kYes };
    static constinit std::atomic<int> known{kUnknown};
    int is_usable = known.load(std::memory_order_relaxed);
    if (is_usable == kUnknown) {
      is_usable = IsInvariant() && NamesCycleCounter(
                                       "/sys/devices/system/clocksource/"
                                       "clocksource0/current_clocksource")
                      ? kYes
                      : kNo;
      known.store(is_usable, std::memory_order_relaxed);
    }
    return is_usable == kYes;
  }
  static uint64_t Ticks() { return __rdtsc(); }
  static Instant Time() { return Clock::now(); }
  static std::atomic<uint64_t>& Rate() {
    static constinit std::atomic<uint64_t> rate{0};
    return rate;
  }
};

// Constant-initialised: costs a thread nothing before its first use.
thread_local constinit QuickClock t_clock;

}  // namespace

Instant QuickNow() {
  CycleCounter counter;
  return t_clock.Now(counter);
}
#else
Instant QuickNow() { return Clock::now(); }
#endif

}  // namespace muster::dataplane
