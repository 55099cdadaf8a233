// Takes the place of client/groups/process_telemetry.cc in libmuster-core.

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/groups/process_telemetry.h"
#include "muster/base/status.h"

namespace muster::internal {

StatusOr<std::unique_ptr<Telemetry>> Telemetry::Start(std::optional<int> port) {
  const char* variable = std::getenv("MUSTER_HTTP_PORT");
  if (port.has_value() || (variable != nullptr && *variable != '\0')) {
    return UnimplementedError(
        "libmuster-core serves no metrics: link libmuster, or do without "
        "http_port and MUSTER_HTTP_PORT");
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

void Telemetry::SetProgress(std::function<std::vector<GroupProgress>()>) {}

}  // namespace muster::internal
