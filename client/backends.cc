#include "muster/backends.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "muster/base/status.h"

namespace muster {

using internal::ErrorSource;

void RegisterBackend(const std::string& name,
                     const std::vector<dataplane::DeviceType>& devices,
                     dataplane::BackendFactory factory) {
  internal::ThrowIfFailed(
      ErrorSource::kControl,
      dataplane::RegisterBackend(name, devices, std::move(factory)));
}

std::string LoadBackend(const std::string& path) {
  return internal::ValueOrThrow(ErrorSource::kControl,
                                dataplane::LoadBackend(path));
}

bool IsBackendAvailable(const std::string& name) {
  const std::vector<std::string> names = dataplane::Backends();
  return std::find(names.begin(), names.end(), absl::AsciiStrToLower(name)) !=
         names.end();
}

std::string GetDefaultBackendForDevice(const std::string& device) {
  int index = 0;
  if (device == "cpu") return "shm";
  if (device == "cuda" ||
      (absl::StartsWith(device, "cuda:") &&
       absl::SimpleAtoi(device.substr(5), &index) && index >= 0)) {
    return "nccl";
  }
  internal::Throw(
      ErrorSource::kControl,
      InvalidArgumentError(absl::StrCat(
          "Default backend not registered for device : ", base::Quote(device),
          "; there are cpu, cuda and cuda:INDEX")));
}

}  // namespace muster
