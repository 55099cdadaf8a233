#ifndef MUSTER_CLIENT_CONTROL_CHANNEL_H_
#define MUSTER_CLIENT_CONTROL_CHANNEL_H_

#include <chrono>
#include <memory>

#include "base/status.h"
#include "client/control/channel_security.h"
#include "client/control/endpoint.h"
#include "grpcpp/grpcpp.h"

namespace muster::internal {

// Whether this process may open the file descriptors of a client, and start the
// threads that gRPC starts with the first credentials, channel or server of a
// process: where one of them does not start gRPC aborts the process, or waits
// for ever. OK where they run already. Errors: kResourceExhausted (the text
// names the limit, what is left of it and what is needed).
Status CheckProcessLimits();

// A channel of its own to the coordinator: it resolves the name anew, and no
// back-off of an earlier one holds it up. It breaks when the coordinator has
// said nothing for `silence_max`, although asked; 0: for 30 s.
std::shared_ptr<grpc::Channel> NewChannel(
    const Endpoint& endpoint, const ConnectionSecurity& security,
    std::chrono::milliseconds silence_max = std::chrono::milliseconds(0));

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CHANNEL_H_
