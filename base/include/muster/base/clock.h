#ifndef MUSTER_BASE_CLOCK_H_
#define MUSTER_BASE_CLOCK_H_

#include <chrono>

#include "muster/base/export.h"

namespace MUSTER_EXPORT muster {
namespace base {

// The clock of every deadline. It is monotonic: setting the system's time does
// not affect it.
using Clock = std::chrono::steady_clock;
using Instant = Clock::time_point;

}  // namespace base
}  // namespace muster

namespace MUSTER_EXPORT muster {

// Used so often that they need no prefix.
using base::Clock;
using base::Instant;

}  // namespace muster

#endif  // MUSTER_BASE_CLOCK_H_
