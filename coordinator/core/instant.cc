#include "coordinator/core/instant.h"

#include <algorithm>

#include "base/text.h"

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
  return base::FormatDuration(duration);
}

}  // namespace muster::coordinator::core
