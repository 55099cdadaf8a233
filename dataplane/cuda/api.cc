#include "dataplane/cuda/api.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/library.h"

namespace muster::dataplane::cuda {
namespace {

constexpr char kVariable[] = "MUSTER_CUDA_LIBRARY";

constexpr Error kInsufficientDriver = 35;

void Fill(Library& library, Api& api) {
  library.Need("cudaRuntimeGetVersion", &api.RuntimeGetVersion);
  library.Need("cudaDriverGetVersion", &api.DriverGetVersion);
  library.Need("cudaGetErrorName", &api.GetErrorName);
  library.Need("cudaGetErrorString", &api.GetErrorString);
  library.Need("cudaGetLastError", &api.GetLastError);
  library.Need("cudaGetDeviceCount", &api.GetDeviceCount);
  library.Need("cudaGetDevice", &api.GetDevice);
  library.Need("cudaSetDevice", &api.SetDevice);
  library.Need("cudaDeviceGetPCIBusId", &api.DeviceGetPCIBusId);
  library.Need("cudaDeviceGetAttribute", &api.DeviceGetAttribute);
  library.Need("cudaDeviceGetStreamPriorityRange",
               &api.DeviceGetStreamPriorityRange);
  library.Need("cudaStreamCreateWithPriority", &api.StreamCreateWithPriority);
  library.Need("cudaStreamDestroy", &api.StreamDestroy);
  library.Need("cudaStreamSynchronize", &api.StreamSynchronize);
  library.Need("cudaStreamWaitEvent", &api.StreamWaitEvent);
  library.Need("cudaStreamIsCapturing", &api.StreamIsCapturing);
  library.Need("cudaThreadExchangeStreamCaptureMode",
               &api.ThreadExchangeStreamCaptureMode);
  library.Need("cudaEventCreateWithFlags", &api.EventCreateWithFlags);
  library.Need("cudaEventDestroy", &api.EventDestroy);
  library.Need("cudaEventRecord", &api.EventRecord);
  library.Need("cudaEventQuery", &api.EventQuery);
  library.Need("cudaEventSynchronize", &api.EventSynchronize);
  library.Need("cudaMalloc", &api.Malloc);
  library.Need("cudaFree", &api.Free);
  library.Need("cudaHostAlloc", &api.HostAlloc);
  library.Need("cudaFreeHost", &api.FreeHost);
  library.Need("cudaMemcpyAsync", &api.MemcpyAsync);
  library.Need("cudaMemsetAsync", &api.MemsetAsync);
}

StatusOr<Library> LoadLibrary() {
  const char* const named = std::getenv(kVariable);
  if (named != nullptr && *named != '\0') {
    StatusOr<Library> library = Library::Load({named}, {});
    if (library.ok()) return library;
    return NotFoundError(absl::StrCat("no CUDA runtime: environment variable ",
                                      kVariable, ": ",
                                      library.status().message()));
  }
  const char* const home = std::getenv("CUDA_HOME");
  StatusOr<Library> library = Library::Load(
      {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"},
      {absl::StrCat(home == nullptr ? "/usr/local/cuda" : home, "/lib64")});
  if (library.ok()) return library;
  return NotFoundError(
      absl::StrCat("no CUDA runtime: ", library.status().message(), " (",
                   kVariable, " may name the file)"));
}

}  // namespace

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

Status ToStatus(const Api& api, Error error, absl::string_view what) {
  if (error == kSuccess) return OkStatus();
  return InternalError(absl::StrCat(what, ": ", api.GetErrorName(error), ": ",
                                    api.GetErrorString(error)));
}

StatusOr<Runtime> Load() {
  StatusOr<Library> library = LoadLibrary();
  if (!library.ok()) return library.status();
  Runtime runtime;
  runtime.path = library->path();
  Fill(*library, runtime.api);
  if (Status missing = library->Check(); !missing.ok()) return missing;
  const Api& api = runtime.api;
  api.RuntimeGetVersion(&runtime.runtime_version);
  api.DriverGetVersion(&runtime.driver_version);
  const Error error = api.GetDeviceCount(&runtime.devices);
  // Clears the error, so that no later caller gets it from CUDA.
  api.GetLastError();
  if (error == kSuccess && runtime.devices > 0) return runtime;
  const std::string text = absl::StrCat(
      "CUDA ", VersionText(runtime.runtime_version), " (", runtime.path,
      ") sees no device: ",
      error == kSuccess ? "there is none" : api.GetErrorString(error),
      runtime.driver_version == 0
          ? "; there is no driver"
          : absl::StrCat("; the driver is for CUDA ",
                         VersionText(runtime.driver_version)));
  if (error == kInsufficientDriver && runtime.driver_version != 0) {
    return FailedPreconditionError(text);
  }
  return UnavailableError(text);
}

const StatusOr<Runtime>& TheRuntime() {
  static const auto* const runtime = new StatusOr<Runtime>(Load());
  return *runtime;
}

}  // namespace muster::dataplane::cuda
