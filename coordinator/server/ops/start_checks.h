#ifndef MUSTER_COORDINATOR_SERVER_OPS_START_CHECKS_H_
#define MUSTER_COORDINATOR_SERVER_OPS_START_CHECKS_H_

#include <cstdint>

#include "base/status.h"

namespace muster::coordinator {

// Whether a coordinator's threads have room in so much address space, on so
// many processors, for each of which gRPC starts some: it aborts the process,
// or waits for ever, where one of them does not start. Errors:
// kResourceExhausted.
Status CheckAddressSpace(uint64_t limit_bytes, int64_t processors);

// Whether a coordinator has room in so many descriptors of which so many are
// open. Errors: kResourceExhausted.
Status CheckDescriptors(uint64_t limit, uint64_t open);

// Whether this process can start a coordinator's threads now; starts as many
// for a moment. Errors: kResourceExhausted (the text names the limit).
Status CheckThreads(int64_t processors);

// Of this process (RLIMIT_AS), or the largest number.
uint64_t AddressSpaceLimit();

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_OPS_START_CHECKS_H_
