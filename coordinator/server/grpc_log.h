#ifndef MUSTER_COORDINATOR_SERVER_GRPC_LOG_H_
#define MUSTER_COORDINATOR_SERVER_GRPC_LOG_H_

#include "coordinator/core/instant.h"

namespace muster::coordinator {

// Sends what gRPC has to say to the log of this process. It writes a line for
// every handshake that fails, and clients with the wrong files try again all
// day: there is one line of those in ten seconds, with the peer of the last.
void TakeOverGrpcLog();

// Writes that line when it is time for it. Call it about once a second.
void TellOfFailedHandshakes(core::Instant now);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_GRPC_LOG_H_
