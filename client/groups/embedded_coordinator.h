#ifndef MUSTER_CLIENT_GROUPS_EMBEDDED_COORDINATOR_H_
#define MUSTER_CLIENT_GROUPS_EMBEDDED_COORDINATOR_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace muster::coordinator {
class Server;
}  // namespace muster::coordinator

namespace muster::internal {

struct EmbeddedCoordinatorOptions {
  // host:port; port 0 takes any free one. Without the files below plain text is
  // served on whatever address this is: whoever embeds a coordinator chose the
  // address.
  std::string listen = "127.0.0.1:0";
  // A TCP socket that listens already or is bound, instead of `listen`; taken
  // over. -1: none.
  int listen_fd = -1;
  // PEM files: speaks TLS, with those who show a certificate of these
  // authorities.
  std::string tls_cert = {};
  std::string tls_key = {};
  std::string tls_client_ca = {};
};

// A coordinator inside this process, for the launcher and for programs that
// start without an external one. Serves no HTTP. Thread-safe.
class EmbeddedCoordinator {
 public:
  // Errors: kInvalidArgument, kUnavailable (cannot listen: the address and the
  // cause).
  static StatusOr<std::unique_ptr<EmbeddedCoordinator>> Start(
      const EmbeddedCoordinatorOptions& options);

  // As Start, with what MUSTER_TLS_CA, MUSTER_TLS_CERT and MUSTER_TLS_KEY say:
  // what ranks know each other by serves the coordinator as well.
  // Errors: as Start's, and kInvalidArgument (authorities without a
  // certificate of this process's own).
  static StatusOr<std::unique_ptr<EmbeddedCoordinator>> StartForRanks(
      EmbeddedCoordinatorOptions options,
      const std::function<const char*(const char* name)>& environment);

  // Ends it without a grace.
  ~EmbeddedCoordinator();

  int port() const;

  // Refuses new calls, and returns when those in progress have ended or
  // `timeout` is over.
  void Drain(std::chrono::milliseconds timeout);

 private:
  explicit EmbeddedCoordinator(std::unique_ptr<coordinator::Server> server);

  const std::unique_ptr<coordinator::Server> server_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_EMBEDDED_COORDINATOR_H_
