// Parses and probes network addresses, and finds the local address that reaches
// one.

#ifndef MUSTER_CLIENT_CONTROL_ENDPOINT_H_
#define MUSTER_CLIENT_CONTROL_ENDPOINT_H_

#include <chrono>
#include <string>

#include "absl/strings/string_view.h"
#include "base/endpoint.h"
#include "base/status.h"

namespace muster::internal {

using base::Endpoint;
using base::IsLoopback;

// The host of an IPv6 literal in brackets, and any other as it is.
std::string WithoutBrackets(std::string host);

// Parses a coordinator's address; errors call it that.
StatusOr<Endpoint> ParseEndpoint(absl::string_view text);

// Opens a TCP connection and closes it. OK, or kUnavailable with the system's
// reason alone: "connection refused", "cannot resolve \"x\": ...".
Status Probe(const Endpoint& endpoint, std::chrono::milliseconds timeout);

// Whether Probe found the host, and nobody who listens.
bool IsConnectionRefused(const Status& probed);

// What answers at a coordinator's address that is none, for people; empty: it
// may be one. Waits for `timeout` for its first words.
std::string DescribeStranger(const Endpoint& endpoint,
                             std::chrono::milliseconds timeout);

// The numeric address of this host that the kernel would use to reach
// `endpoint`. Sends nothing.
StatusOr<std::string> LocalAddressTowards(const Endpoint& endpoint);

// Where a coordinator for everybody who is told `endpoint` must listen: the
// address itself when it is numeric or "localhost", else every address of this
// host, of IPv4 and IPv6, because a name may mean another one to others (a
// service's virtual address, or 127.0.1.1 for the own host name).
std::string ListenAddress(const Endpoint& endpoint);

// Where this host's other processes and other hosts can reach this one, as far
// as it can tell: the address of the first interface that `interfaces` (as in
// GLOO_SOCKET_IFNAME, may be null) names, else the one of its host name, else
// loopback. Numeric.
std::string ReachableAddress(const char* interfaces);

// The name of this host.
std::string HostName();

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_ENDPOINT_H_
