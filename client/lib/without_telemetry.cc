// Takes the place of client/groups/process_telemetry.cc in libmuster-core.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/groups/process_telemetry.h"
#include "muster/base/status.h"

namespace muster::internal {

StatusOr<std::unique_ptr<Telemetry>> Telemetry::Start(std::optional<int> port) {
  // MUSTER_HTTP_PORT, which muster-run sets, has no effect.
  if (port.has_value()) {
    return UnimplementedError(
        "libmuster-core serves no metrics: link libmuster, or do without "
        "http_port");
  }
  return std::unique_ptr<Telemetry>();
}

const std::string& Telemetry::address() const {
  static const std::string address;
  return address;
}

std::shared_ptr<dataplane::Metrics> Telemetry::metrics() const {
  return nullptr;
}

void Telemetry::SetRank(int, int) {}

// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Telemetry::SetProgress(std::function<std::vector<GroupProgress>()>) {}

}  // namespace muster::internal
