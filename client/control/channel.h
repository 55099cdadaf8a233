#ifndef MUSTER_CLIENT_CONTROL_CHANNEL_H_
#define MUSTER_CLIENT_CONTROL_CHANNEL_H_

#include <chrono>
#include <memory>

#include "client/control/channel_security.h"
#include "client/control/endpoint.h"
#include "grpcpp/grpcpp.h"
#include "muster/base/status.h"

namespace muster::internal {

// Checks that this process may open the file descriptors that a client needs
// and start the threads that gRPC starts with the first credentials, channel or
// server of a process. If such a thread does not start, gRPC aborts the process
// or waits for ever. OK if these threads already run.
// Errors: kResourceExhausted (the text names the limit, what is left of it and
// what is needed).
Status CheckProcessLimits();

// Makes a new channel to the coordinator. It resolves the name afresh, and the
// back-off of earlier channels does not delay it. The connection is closed if
// the coordinator does not answer keepalive pings for `silence_max`; 0 means 30
// s.
std::shared_ptr<grpc::Channel> NewChannel(
    const Endpoint& endpoint, const ConnectionSecurity& security,
    std::chrono::milliseconds silence_max = std::chrono::milliseconds(0));

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CHANNEL_H_
