#ifndef MUSTER_COORDINATOR_SERVER_OPS_LIBRARY_LOG_H_
#define MUSTER_COORDINATOR_SERVER_OPS_LIBRARY_LOG_H_

#include "coordinator/core/instant.h"

namespace muster::coordinator {

// Sends what gRPC and protobuf have to say to the log of this process. They
// write a line for every handshake that fails and every message that they
// cannot parse, and a stranger can send those all day: there is one line of
// each kind in a while, with the number of those that it stands for and the
// text of the last. What gRPC says below its errors, on request by
// GRPC_VERBOSITY, is written in full. Later calls do nothing. Thread-safe.
void TakeOverLibraryLogs();

// Writes those lines when it is time for them. Call it about once a second.
void TellOfLibraries(core::Instant now);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_OPS_LIBRARY_LOG_H_
