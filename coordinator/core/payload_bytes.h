// Computes the memory that an answer holds.

#ifndef MUSTER_COORDINATOR_CORE_PAYLOAD_BYTES_H_
#define MUSTER_COORDINATOR_CORE_PAYLOAD_BYTES_H_

#include <cstdint>

#include "coordinator/core/payload.h"

namespace muster::coordinator::core {

// The bytes that `payload` keeps alive beyond its own fixed size. Values count
// in full, because other holders may release theirs. Formations do not count:
// all members share the newest. Barrier results count although they are shared,
// because there may be any number of them.
int64_t HeldBytes(const Payload& payload);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_PAYLOAD_BYTES_H_
