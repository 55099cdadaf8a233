#ifndef MUSTER_CLIENT_TELEMETRY_TELEMETRY_H_
#define MUSTER_CLIENT_TELEMETRY_TELEMETRY_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/http_server.h"
#include "dataplane/observe/metrics.h"
#include "muster/base/status.h"

namespace muster::worker {

struct TelemetryOptions {
  // The address to listen on: IPv4, IPv6 or a host name. Any client that
  // reaches it can read all pages, so the default is loopback.
  std::string address = "127.0.0.1";
  // 0 takes any free port.
  int port = 0;
  // Returns how long the oldest running collective has run, 0 if none runs.
  // Null: the process runs no collectives.
  std::function<std::chrono::milliseconds()> running_for = nullptr;
  // More pages below /debug/.
  std::vector<base::HttpPage> debug_pages = {};
  // Decides whether a request may read pages below /debug/; null: all may.
  base::HttpGuard may_debug = nullptr;
};

// Reads MUSTER_HTTP_PORT and MUSTER_HTTP_ADDRESS. Returns nullopt if
// MUSTER_HTTP_PORT is unset or empty: the process then serves no HTTP.
// Errors: INVALID_ARGUMENT (a variable's value; the text names both).
StatusOr<std::optional<TelemetryOptions>> TelemetryOptionsFromEnv();

// Telemetry serves one worker process's state over HTTP: /metrics (Prometheus
// text), /healthz ("ok" while the process can answer), /identity (its rank, or
// -1 outside a group, and its pid, for a client that knows only an address),
// and below /debug/ the stacks of its threads, its environment and its log
// level, which can be set there. / links to all pages. Thread-safe.
class Telemetry {
 public:
  // Listens and serves when it returns.
  // Errors: INVALID_ARGUMENT (port out of range), UNAVAILABLE (cannot listen:
  //   the text names the address and the cause).
  static StatusOr<std::unique_ptr<Telemetry>> Start(
      const TelemetryOptions& options);

  // Stops serving. Does not wait for clients.
  virtual ~Telemetry() = default;

  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // host:port, with the actual port. An IPv6 address has brackets. The member
  // sends it to the coordinator.
  virtual const std::string& address() const = 0;

  // Receives the data plane's collectives. Lives as long as this object.
  virtual dataplane::Metrics& collectives() = 0;

  // Sets the rank and world size of the default group, for the gauges and
  // /identity. -1 and 0, the initial values, mean no group.
  virtual void SetRank(int rank, int world_size) = 0;

 protected:
  Telemetry() = default;
};

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_TELEMETRY_H_
