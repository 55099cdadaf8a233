#ifndef MUSTER_CLIENT_GROUPS_EMBEDDED_COORDINATOR_H_
#define MUSTER_CLIENT_GROUPS_EMBEDDED_COORDINATOR_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "muster/base/status.h"

namespace muster::coordinator {
class Server;
}  // namespace muster::coordinator

namespace muster::internal {

struct EmbeddedCoordinatorOptions {
  // host:port; port 0 takes any free one. Without the files below it serves
  // plain text on any address, loopback or not: the caller has chosen it.
  std::string listen = "127.0.0.1:0";
  // A bound or listening TCP socket to use instead of `listen`. The coordinator
  // uses a duplicate. -1: none.
  int listen_fd = -1;
  // PEM files. With them it serves TLS. Clients need a certificate of these
  // authorities.
  std::string tls_cert = {};
  std::string tls_key = {};
  std::string tls_client_ca = {};
};

// A coordinator in this process, for the launcher and for programs that start
// without an external one. Serves no HTTP. Thread-safe.
class EmbeddedCoordinator {
 public:
  // Errors: kInvalidArgument, kUnavailable (cannot listen; the text has the
  // address and the cause).
  static StatusOr<std::unique_ptr<EmbeddedCoordinator>> Start(
      const EmbeddedCoordinatorOptions& options);

  // As Start, with the files that MUSTER_TLS_CA, MUSTER_TLS_CERT and
  // MUSTER_TLS_KEY name.
  // Errors: as Start, and kInvalidArgument (authorities without an own
  // certificate).
  static StatusOr<std::unique_ptr<EmbeddedCoordinator>> StartForRanks(
      EmbeddedCoordinatorOptions options,
      const std::function<const char*(const char* name)>& environment);

  // Stops at once.
  ~EmbeddedCoordinator();

  int port() const;

  // Refuses new calls. Returns when all running calls have ended, or after
  // `timeout`.
  void Drain(std::chrono::milliseconds timeout);

 private:
  explicit EmbeddedCoordinator(std::unique_ptr<coordinator::Server> server);

  const std::unique_ptr<coordinator::Server> server_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_EMBEDDED_COORDINATOR_H_
