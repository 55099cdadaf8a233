#ifndef MUSTER_COORDINATOR_SERVER_ENDPOINT_H_
#define MUSTER_COORDINATOR_SERVER_ENDPOINT_H_

#include <string>

#include "base/endpoint.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// An address to listen on; port 0 means any free port.
using base::Endpoint;
using base::ParseEndpoint;

// Whether only processes of this host can reach the endpoint: 127.0.0.0/8, ::1
// or localhost. Other names count as reachable from elsewhere, whatever they
// resolve to today.
bool IsLoopback(const Endpoint& endpoint);

// The address on which a server for `endpoint` must listen on this kernel:
// without IPv6, "[::]" (every address of this host) becomes 0.0.0.0.
Endpoint ListeningEndpoint(const Endpoint& endpoint);

// The address of the peer of a connected TCP socket: "10.0.0.7:41000".
std::string PeerAddress(int fd);

// Checks that a server could listen on the endpoint, by trying it. The
// libraries that listen do not report why they fail.
// Errors: UNAVAILABLE `cannot listen on 127.0.0.1:7070: address already in
//   use`.
Status CheckCanListen(const Endpoint& endpoint);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_ENDPOINT_H_
