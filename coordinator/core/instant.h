// Time as the state machines use it: a value that the caller passes in. They
// read no clock.

#ifndef MUSTER_COORDINATOR_CORE_INSTANT_H_
#define MUSTER_COORDINATOR_CORE_INSTANT_H_

#include <chrono>
#include <string>

namespace muster::coordinator::core {

using Instant = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// Returns `now + timeout`, or the last instant if that overflows. A negative
// `timeout` counts as zero.
Instant DeadlineAfter(Instant now, Duration timeout);

// Returns `a + b`, or the end of the range if that overflows.
Duration SaturatingSum(Duration a, Duration b);

// Returns "100ms", "30s" or "11.3s": milliseconds below one second, else
// seconds with one decimal unless it is zero.
std::string FormatDuration(Duration duration);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_INSTANT_H_
