#ifndef MUSTER_CLIENT_CONTROL_CHANNEL_H_
#define MUSTER_CLIENT_CONTROL_CHANNEL_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

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
// With `turn` 0 a name's first address that accepts a connection is taken. If a
// coordinator accepted one and did not serve, another `turn` takes another
// address of its name, if there is one.
std::shared_ptr<grpc::Channel> NewChannel(
    const Endpoint& endpoint, const ConnectionSecurity& security,
    std::chrono::milliseconds silence_max = std::chrono::milliseconds(0),
    size_t turn = 0);

// The same for a Unix socket (gRPC's name of it, unix:PATH), in plain text: the
// folder of the socket decides who reaches it.
std::shared_ptr<grpc::Channel> NewUnixChannel(
    const std::string& target, std::chrono::milliseconds silence_max);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CHANNEL_H_
