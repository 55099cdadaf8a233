#ifndef MUSTER_COORDINATOR_SERVER_OPS_LIBRARY_LOG_H_
#define MUSTER_COORDINATOR_SERVER_OPS_LIBRARY_LOG_H_

#include "coordinator/core/instant.h"

namespace muster::coordinator {

// Redirects the log output of gRPC and protobuf to this process's log. They log
// a line for every failed handshake and every malformed message, which any
// client can cause all day. So each kind of line is logged once in a while,
// with the number of lines that it stands for and the text of the last. gRPC's
// output below its errors, requested with GRPC_VERBOSITY, is logged in full.
// Later calls do nothing. Thread-safe.
void TakeOverLibraryLogs();

// Writes the pending lines if they are due. Call it about once a second.
void TellOfLibraries(core::Instant now);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_OPS_LIBRARY_LOG_H_
