#ifndef MUSTER_COORDINATOR_SERVER_ENDPOINT_H_
#define MUSTER_COORDINATOR_SERVER_ENDPOINT_H_

#include <string>

#include "base/endpoint.h"
#include "base/status.h"

namespace muster::coordinator {

// Where to listen; port 0 is any free one.
using base::Endpoint;
using base::ParseEndpoint;

// Whether only processes of this host can reach it: 127.0.0.0/8, ::1 or
// localhost. Other names count as reachable from elsewhere, whatever they
// resolve to today.
bool IsLoopback(const Endpoint& endpoint);

// Where a server that is to listen at `endpoint` listens on this kernel: on one
// without IPv6 "[::]", every address of this host, is 0.0.0.0.
Endpoint ListeningEndpoint(const Endpoint& endpoint);

// Who is at the other end of a connected TCP socket: "10.0.0.7:41000".
std::string PeerAddress(int fd);

// Whether a server could listen there; tries it. The libraries that do listen
// tell no cause when they fail.
// Errors: UNAVAILABLE `cannot listen on 127.0.0.1:7070: address already in
//   use`.
Status CheckCanListen(const Endpoint& endpoint);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_ENDPOINT_H_
