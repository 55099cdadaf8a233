#include "muster/device_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "dataplane/cuda/api.h"
#include "dataplane/cuda/stream.h"
#include "muster/base/status.h"

namespace muster {
namespace {

using dataplane::cuda::Api;
using dataplane::cuda::DeviceGuard;
using dataplane::cuda::TheRuntime;
using internal::ErrorSource;

constexpr dataplane::cuda::Error kMemoryAllocation = 2;

using internal::Invalid;

// Returns the functions of CUDA. Throws if `device` does not exist.
const Api& GetApi(int device) {
  const auto& runtime = TheRuntime();
  if (!runtime.ok()) {
    // kUnavailable is only for the network.
    internal::Throw(ErrorSource::kControl,
                    FailedPreconditionError(runtime.status().message()));
  }
  if (device < 0 || device >= runtime->devices) {
    Invalid(absl::StrCat("argument device: there is no cuda:", device,
                         ", this process has ", runtime->devices));
  }
  return runtime->api;
}

void Check(const Api& api, dataplane::cuda::Error error,
           absl::string_view what) {
  internal::ThrowIfFailed(ErrorSource::kControl,
                          dataplane::cuda::ToStatus(api, error, what));
}

void Synchronize(const Api& api, int device) {
  Check(api, api.StreamSynchronize(dataplane::cuda::CurrentStream(device)),
        "cudaStreamSynchronize");
}

}  // namespace

int CudaDeviceCount() {
  const auto& runtime = TheRuntime();
  return runtime.ok() ? runtime->devices : 0;
}

DeviceMemory::DeviceMemory(int device, size_t bytes)
    : device_(device), bytes_(bytes) {
  const Api& api = GetApi(device);
  if (bytes == 0) return;
  const DeviceGuard guard(api, device);
  void* data = nullptr;
  const auto error = api.Malloc(&data, bytes);
  if (error == kMemoryAllocation) {
    // Clears CUDA's last error, so that no later call finds it.
    api.GetLastError();
    internal::Throw(
        ErrorSource::kControl,
        ResourceExhaustedError(absl::StrCat(
            "cuda:", device, " has no room for ", bytes, " bytes")));
  }
  Check(api, error, "cudaMalloc");
  data_ = static_cast<std::byte*>(data);
}

DeviceMemory DeviceMemory::Of(int device, void* data, size_t bytes) {
  DeviceMemory memory(device, 0);
  memory.bytes_ = bytes;
  memory.data_ = static_cast<std::byte*>(data);
  memory.owns_ = false;
  return memory;
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_),
      bytes_(std::exchange(other.bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      owns_(other.owns_) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  std::swap(data_, other.data_);
  std::swap(owns_, other.owns_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr || !owns_) return;
  const Api& api = TheRuntime()->api;
  const DeviceGuard guard(api, device_);
  api.Free(data_);
}

void DeviceMemory::Copy(void* to, const void* from, size_t bytes,
                        size_t offset) const {
  if (offset > bytes_ || bytes > bytes_ - offset) {
    Invalid(absl::StrCat(bytes, " bytes at offset ", offset, " of ", bytes_,
                         " bytes on cuda:", device_));
  }
  if (bytes == 0) return;
  const Api& api = GetApi(device_);
  const DeviceGuard guard(api, device_);
  Check(api,
        api.MemcpyAsync(to, from, bytes, dataplane::cuda::kMemcpyDefault,
                        dataplane::cuda::CurrentStream(device_)),
        "cudaMemcpyAsync");
  Synchronize(api, device_);
}

void DeviceMemory::Write(const void* from, size_t bytes, size_t offset) {
  Copy(data_ + offset, from, bytes, offset);
}

void DeviceMemory::Read(void* to, size_t bytes, size_t offset) const {
  Copy(to, data_ + offset, bytes, offset);
}

void DeviceMemory::Clear() {
  if (bytes_ == 0) return;
  const Api& api = GetApi(device_);
  const DeviceGuard guard(api, device_);
  Check(api,
        api.MemsetAsync(data_, 0, bytes_,
                        dataplane::cuda::CurrentStream(device_)),
        "cudaMemsetAsync");
}

void SynchronizeCurrentStream(int device) {
  const Api& api = GetApi(device);
  const DeviceGuard guard(api, device);
  Synchronize(api, device);
}

}  // namespace muster
