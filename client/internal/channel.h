#ifndef MUSTER_CLIENT_INTERNAL_CHANNEL_H_
#define MUSTER_CLIENT_INTERNAL_CHANNEL_H_

#include <memory>

#include "client/internal/channel_security.h"
#include "client/internal/endpoint.h"
#include "grpcpp/grpcpp.h"

namespace muster::internal {

// A channel of its own to the coordinator: it resolves the name anew, and no
// back-off of an earlier one holds it up.
std::shared_ptr<grpc::Channel> NewChannel(const Endpoint& endpoint,
                                          const ChannelSecurity& security);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_INTERNAL_CHANNEL_H_
