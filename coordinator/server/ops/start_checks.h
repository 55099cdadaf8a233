#ifndef MUSTER_COORDINATOR_SERVER_OPS_START_CHECKS_H_
#define MUSTER_COORDINATOR_SERVER_OPS_START_CHECKS_H_

#include <cstdint>

#include "muster/base/status.h"

namespace muster::coordinator {

// Whether `limit_bytes` of address space suffice for a coordinator's threads.
// gRPC starts some per processor, and aborts or hangs if one does not start.
// Errors: kResourceExhausted.
Status CheckAddressSpace(uint64_t limit_bytes, int64_t processors);

// Whether a coordinator has enough descriptors if `open` of `limit` are open.
// Errors: kResourceExhausted.
Status CheckDescriptors(uint64_t limit, uint64_t open);

// Whether this process can start a coordinator's threads now. Starts as many
// for a moment. Errors: kResourceExhausted (the text names the limit).
Status CheckThreads(int64_t processors);

// This process's RLIMIT_AS; the largest number if there is none.
uint64_t AddressSpaceLimit();

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_OPS_START_CHECKS_H_
