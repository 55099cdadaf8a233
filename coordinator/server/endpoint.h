#ifndef MUSTER_COORDINATOR_SERVER_ENDPOINT_H_
#define MUSTER_COORDINATOR_SERVER_ENDPOINT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::coordinator {

// Where to listen.
struct Endpoint {
  std::string host;  // without brackets
  int port = 0;      // 0: any free one

  // "host:port", an IPv6 host in brackets.
  std::string ToString() const;

  // Whether only processes of this host can reach it: 127.0.0.0/8, ::1 or
  // localhost. Other names count as reachable from elsewhere, whatever they
  // resolve to today.
  bool IsLoopback() const;
};

// Parses "host:port"; `option` names the offending option in the error.
// Errors: INVALID_ARGUMENT.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view option,
                                       absl::string_view text);

// Where a server that is to listen at `endpoint` listens on this kernel: on one
// without IPv6 "[::]", every address of this host, is 0.0.0.0.
Endpoint ListeningEndpoint(const Endpoint& endpoint);

// Who is at the other end of a connected TCP socket: "10.0.0.7:41000".
std::string PeerAddress(int fd);

// Whether a server could listen there; tries it. The libraries that do listen
// tell no cause when they fail.
// Errors: UNAVAILABLE `cannot listen on 127.0.0.1:7070: address already in
//   use`.
absl::Status CheckCanListen(const Endpoint& endpoint);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_ENDPOINT_H_
