#include "client/groups/embedded_coordinator.h"

#include <functional>
#include <memory>
#include <utility>

#include "client/control/channel_security.h"
#include "client/control/logging.h"
#include "coordinator/server/server.h"
#include "muster/base/status.h"

namespace muster::internal {

StatusOr<std::unique_ptr<EmbeddedCoordinator>> EmbeddedCoordinator::Start(
    const EmbeddedCoordinatorOptions& options) {
  // The coordinator may log the first line of this process.
  EnsureLogging();
  coordinator::ServerOptions server_options;
  server_options.listen = options.listen;
  server_options.listen_fd = options.listen_fd;
  server_options.insecure = true;
  server_options.tls_cert = options.tls_cert;
  server_options.tls_key = options.tls_key;
  server_options.tls_client_ca = options.tls_client_ca;
  StatusOr<std::unique_ptr<coordinator::Server>> server =
      coordinator::Server::Start(server_options);
  if (!server.ok()) return server.status();
  return std::unique_ptr<EmbeddedCoordinator>(
      new EmbeddedCoordinator(*std::move(server)));
}

StatusOr<std::unique_ptr<EmbeddedCoordinator>>
EmbeddedCoordinator::StartForRanks(
    EmbeddedCoordinatorOptions options,
    const std::function<const char*(const char* name)>& environment) {
  const StatusOr<ChannelSecurity> security =
      ChannelSecurity::Take({}, environment);
  if (!security.ok()) return security.status();
  if (!security->tls_ca().empty() && security->tls_cert().empty()) {
    return InvalidArgumentError(
        "MUSTER_TLS_CA is set: who serves the coordinator needs "
        "MUSTER_TLS_CERT "
        "and MUSTER_TLS_KEY");
  }
  options.tls_cert = security->tls_cert();
  options.tls_key = security->tls_key();
  options.tls_client_ca = security->tls_ca();
  return Start(options);
}

EmbeddedCoordinator::EmbeddedCoordinator(
    std::unique_ptr<coordinator::Server> server)
    : server_(std::move(server)) {}

EmbeddedCoordinator::~EmbeddedCoordinator() = default;

int EmbeddedCoordinator::port() const { return server_->port(); }

void EmbeddedCoordinator::Drain(std::chrono::milliseconds timeout) {
  server_->Drain(timeout);
}

}  // namespace muster::internal
