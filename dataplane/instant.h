#ifndef MUSTER_DATAPLANE_INSTANT_H_
#define MUSTER_DATAPLANE_INSTANT_H_

#include <chrono>

namespace muster::dataplane {

// The clock of every deadline here. It never jumps when somebody sets the time.
using Clock = std::chrono::steady_clock;
using Instant = Clock::time_point;

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_INSTANT_H_
