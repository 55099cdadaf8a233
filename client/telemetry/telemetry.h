#ifndef MUSTER_CLIENT_TELEMETRY_TELEMETRY_H_
#define MUSTER_CLIENT_TELEMETRY_TELEMETRY_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/http_server.h"
#include "base/status.h"
#include "dataplane/observe/metrics.h"

namespace muster::worker {

struct TelemetryOptions {
  // Address to listen on: an IPv4 or IPv6 address, or a host name. Whoever
  // reaches it can read everything below, so loopback unless told otherwise.
  std::string address = "127.0.0.1";
  // 0 takes any free port.
  int port = 0;
  // How long the oldest collective that runs has been running, 0 if none does;
  // null: none ever does.
  std::function<std::chrono::milliseconds()> running_for = nullptr;
  // Pages below /debug/ beside those of this process that every one has.
  std::vector<base::HttpPage> debug_pages = {};
  // Whether a request may have the pages below /debug/; null: all may.
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

  // Stops serving, and waits for no client.
  virtual ~Telemetry() = default;

  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // host:port that it serves on, with the port that was really taken; an IPv6
  // address stands in brackets. What the member tells the coordinator.
  virtual const std::string& address() const = 0;

  // What the data plane reports its collectives to. Lives as long as this.
  virtual dataplane::Metrics& collectives() = 0;

  // The default group's place of this process, as gauges and for /identity; -1
  // and 0 (the values before the first call) say that it is in no group.
  virtual void SetRank(int rank, int world_size) = 0;

 protected:
  Telemetry() = default;
};

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_TELEMETRY_H_
