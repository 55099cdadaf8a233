// Parses, joins and probes network addresses, and finds the local address that
// reaches one.

#ifndef MUSTER_CLIENT_CONTROL_ENDPOINT_H_
#define MUSTER_CLIENT_CONTROL_ENDPOINT_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/endpoint.h"
#include "muster/base/status.h"

namespace muster::internal {

using base::Endpoint;
using base::IsLoopback;

// Removes the brackets around an IPv6 literal.
std::string WithoutBrackets(std::string host);

// Parses the address of a coordinator.
StatusOr<Endpoint> ParseEndpoint(absl::string_view text);

// The port of a coordinator where an option may leave it out.
inline constexpr int kDefaultPort = 7070;

// The most addresses of a list.
inline constexpr size_t kEndpointsMax = 64;

// Parses the addresses of coordinators: "host:port", or several with commas
// between them. Drops repetitions. With `default_port` a host may stand alone.
// Errors: kInvalidArgument (the text begins with `what`, the name of the
// option,
//   and has `text`).
StatusOr<std::vector<Endpoint>> ParseEndpoints(absl::string_view what,
                                               absl::string_view text,
                                               int default_port = 0);

// Returns "a:7070,b:7070".
std::string JoinEndpoints(const std::vector<Endpoint>& endpoints);

// Returns the numeric addresses of the endpoint's name, with its port. Empty if
// it cannot be resolved.
std::vector<Endpoint> NumericEndpoints(const Endpoint& endpoint);

// Opens a TCP connection and closes it. OK, or kUnavailable with the system's
// reason alone: "connection refused", "cannot resolve \"x\": ...".
Status Probe(const Endpoint& endpoint, std::chrono::milliseconds timeout);

// Whether the probe reached the host, but nothing listens on the port.
bool IsConnectionRefused(const Status& probed);

// If the server at `endpoint` is no coordinator, describes it for people; else
// returns "". Waits up to `timeout` for its first bytes.
std::string DescribeStranger(const Endpoint& endpoint,
                             std::chrono::milliseconds timeout);

// Returns the numeric address of this host that the kernel would use to reach
// `endpoint`. Sends nothing.
StatusOr<std::string> LocalAddressTowards(const Endpoint& endpoint);

// Returns the address on which a coordinator must listen so that all clients of
// `endpoint` reach it: the host itself if it is numeric or "localhost", else
// all IPv4 and IPv6 addresses, because a name may resolve differently elsewhere
// (a service's virtual address, or 127.0.1.1 for the own host name).
std::string ListenAddress(const Endpoint& endpoint);

// Returns a numeric address at which other processes and hosts probably reach
// this host: that of the first interface that `interfaces` names (as in
// GLOO_SOCKET_IFNAME; may be null), else that of the host name, else loopback.
std::string ReachableAddress(const char* interfaces);

// Returns the name of this host.
std::string HostName();

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_ENDPOINT_H_
