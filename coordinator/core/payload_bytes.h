// The memory that an answer takes.

#ifndef MUSTER_COORDINATOR_CORE_PAYLOAD_BYTES_H_
#define MUSTER_COORDINATOR_CORE_PAYLOAD_BYTES_H_

#include <cstdint>

#include "coordinator/core/payload.h"

namespace muster::coordinator::core {

// The bytes that `payload` keeps beyond its own fixed size. Values count in
// full: who else has one may let go of it. Formations do not: all members share
// the newest. Barrier results are shared as well, but there may be any number
// of them, so they count.
int64_t HeldBytes(const Payload& payload);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_PAYLOAD_BYTES_H_
