#include "client/backends.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/internal/throw.h"

namespace muster {

using internal::Origin;

void RegisterBackend(const std::string& name,
                     const std::vector<dataplane::DeviceType>& devices,
                     dataplane::BackendFactory factory) {
  internal::ThrowIfFailed(
      Origin::kControl,
      dataplane::RegisterBackend(name, devices, std::move(factory)));
}

std::string LoadBackend(const std::string& path) {
  return internal::ValueOrThrow(Origin::kControl, dataplane::LoadBackend(path));
}

bool IsBackendAvailable(const std::string& name) {
  const std::vector<std::string> names = dataplane::Backends();
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace muster
