#include "coordinator/core/instant.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {

Instant DeadlineAfter(Instant now, Duration timeout) {
  timeout = std::max(timeout, Duration::zero());
  if (timeout > Instant::max() - now) return Instant::max();
  return now + timeout;
}

Duration SaturatingSum(Duration a, Duration b) {
  if (b > Duration::zero() && a > Duration::max() - b) return Duration::max();
  if (b < Duration::zero() && a < Duration::min() - b) return Duration::min();
  return a + b;
}

std::string FormatDuration(Duration duration) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const int64_t ms = duration_cast<milliseconds>(duration).count();
  if (ms < 1000 && ms > -1000) return absl::StrCat(ms, "ms");
  const int64_t tenths = ms / 100;
  if (tenths % 10 == 0) return absl::StrCat(tenths / 10, "s");
  return absl::StrCat(tenths / 10, ".", tenths % 10, "s");
}

}  // namespace muster::coordinator::core
