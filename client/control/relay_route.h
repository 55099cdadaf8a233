#ifndef MUSTER_CLIENT_CONTROL_RELAY_ROUTE_H_
#define MUSTER_CLIENT_CONTROL_RELAY_ROUTE_H_

#include <chrono>
#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "client/control/channel_security.h"
#include "client/control/connection.h"
#include "client/control/endpoint.h"
#include "muster/base/status.h"

namespace muster::internal {

// The variable that muster-run sets for its ranks: HOST:PORT@PATH, the
// coordinator (or several, with commas between) and the socket of the relay
// that reaches it.
inline constexpr char kRelayVariable[] = "MUSTER_HOST_RELAY";

// The headers of a session through a relay: the coordinator it is for, and, in
// the trailers, that the session's end is no failure of the relay.
inline constexpr char kRelayTargetHeader[] = "muster-coordinator";
inline constexpr char kRelayLivesHeader[] = "muster-relay";

// Returns gRPC's name of a Unix socket.
std::string UnixTarget(absl::string_view path);

// RelayRoute decides which connections of a session go through muster-run's
// relay. After one that the relay has failed, the next one goes directly.
// Not thread-safe.
class RelayRoute {
 public:
  // `addresses` are those of the session's options: HOST:PORT, or several with
  // commas between. Without the variable, or if it is for other coordinators,
  // all connections are direct.
  // Errors: kInvalidArgument (the variable; the text names it and its value).
  static StatusOr<RelayRoute> Take(
      absl::string_view addresses,
      const EnvironmentReader& environment = ReadEnvironment);

  // Returns the way of the next connection to `endpoint`. `silence_max` and
  // `turn` are those of a direct connection (NewChannel).
  Connection::Route Next(const Endpoint& endpoint,
                         const ConnectionSecurity& security,
                         std::chrono::milliseconds silence_max, size_t turn);

  // The last connection has ended with `why`. Returns the same, or that the
  // relay has failed.
  Status Ended(const Connection& connection, Status why);

  // Whether the last connection goes through the relay.
  bool in_use() const { return relayed_; }

  // Whether the relay has failed the last connection. A direct one can be made
  // at once.
  bool failed() const { return failed_; }

 private:
  explicit RelayRoute(std::string path) : path_(std::move(path)) {}

  std::string path_;  // empty: no relay
  bool relayed_ = false;
  bool failed_ = false;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_RELAY_ROUTE_H_
