#include "client/internal/embedded_coordinator.h"

#include <memory>
#include <utility>

#include "coordinator/server/server.h"

namespace muster::internal {

absl::StatusOr<std::unique_ptr<EmbeddedCoordinator>> EmbeddedCoordinator::Start(
    const EmbeddedCoordinatorOptions& options) {
  coordinator::ServerOptions server_options;
  server_options.listen = options.listen;
  server_options.insecure = true;
  server_options.tls_cert = options.tls_cert;
  server_options.tls_key = options.tls_key;
  server_options.tls_client_ca = options.tls_client_ca;
  absl::StatusOr<std::unique_ptr<coordinator::Server>> server =
      coordinator::Server::Start(server_options);
  if (!server.ok()) return server.status();
  return std::unique_ptr<EmbeddedCoordinator>(
      new EmbeddedCoordinator(*std::move(server)));
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
