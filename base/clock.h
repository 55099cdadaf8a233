#ifndef MUSTER_BASE_CLOCK_H_
#define MUSTER_BASE_CLOCK_H_

#include <chrono>

namespace muster::base {

// The clock of every deadline here. It never jumps when somebody sets the time.
using Clock = std::chrono::steady_clock;
using Instant = Clock::time_point;

}  // namespace muster::base

namespace muster {

// So common that they go without the prefix.
using base::Clock;
using base::Instant;

}  // namespace muster

#endif  // MUSTER_BASE_CLOCK_H_
