#include "client/internal/telemetry.h"

#include <memory>
#include <utility>

#include "worker/telemetry.h"

namespace muster::internal {

absl::StatusOr<std::unique_ptr<Telemetry>> Telemetry::Start(
    std::optional<int> port) {
  absl::StatusOr<std::optional<worker::TelemetryOptions>> options =
      worker::TelemetryOptionsFromEnv();
  if (!options.ok()) return options.status();
  if (port.has_value()) {
    if (!options->has_value()) options->emplace();
    (*options)->port = *port;
  }
  if (!options->has_value()) return nullptr;
  absl::StatusOr<std::unique_ptr<worker::Telemetry>> server =
      worker::Telemetry::Start(**std::move(options));
  if (!server.ok()) return server.status();
  return std::unique_ptr<Telemetry>(
      new Telemetry(std::shared_ptr<worker::Telemetry>(*std::move(server))));
}

Telemetry::Telemetry(std::shared_ptr<worker::Telemetry> server)
    : server_(std::move(server)) {}

const std::string& Telemetry::address() const { return server_->address(); }

std::shared_ptr<dataplane::Metrics> Telemetry::metrics() const {
  return {server_, &server_->collectives()};
}

void Telemetry::SetRank(int rank, int world_size) {
  server_->SetRank(rank, world_size);
}

}  // namespace muster::internal
