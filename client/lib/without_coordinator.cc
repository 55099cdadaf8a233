// Takes the place of client/groups/embedded_coordinator.cc in libmuster-core.

#include <chrono>
#include <functional>
#include <memory>

#include "client/groups/embedded_coordinator.h"
#include "muster/base/status.h"

// Completes the type; there is never one.
class muster::coordinator::Server {};

namespace muster::internal {

StatusOr<std::unique_ptr<EmbeddedCoordinator>> EmbeddedCoordinator::Start(
    const EmbeddedCoordinatorOptions& options) {
  return UnimplementedError(
      "this process would serve the coordinator at " + options.listen +
      ", and libmuster-core has none: link libmuster, or use muster-run "
      "or muster-coordinator (muster://HOST:PORT/JOB)");
}

StatusOr<std::unique_ptr<EmbeddedCoordinator>>
EmbeddedCoordinator::StartForRanks(
    EmbeddedCoordinatorOptions options,  // NOLINT(*-unnecessary-value-param)
    const std::function<const char*(const char* name)>&) {
  return Start(options);
}

EmbeddedCoordinator::~EmbeddedCoordinator() = default;

int EmbeddedCoordinator::port() const { return 0; }

void EmbeddedCoordinator::Drain(std::chrono::milliseconds) {}

}  // namespace muster::internal
