#include "client/examples/tensor_device.h"

#include <algorithm>

#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::examples {

Floats::Floats(size_t count) {
  try {
    symmetric_ = AllocateSymmetric(/*group=*/nullptr, DataType::kFloat32,
                                   {static_cast<int64_t>(count)},
                                   {.device = DeviceType::kCpu});
    std::ranges::fill(values(), 0.0f);
  } catch (const DistError& error) {
    // The backend has none, or the memory does not suffice; the same on all
    // ranks.
    if (!IsUnimplemented(error.status()) &&
        !IsResourceExhausted(error.status())) {
      throw;
    }
    LOG_IF(WARNING, IsResourceExhausted(error.status()) && GetRank() == 0)
        << "gradients are in ordinary memory: " << error.what();
    ordinary_.resize(count);
  }
}

TensorDevice::TensorDevice(std::optional<int> device) : device_(device) {
  if (device_.has_value()) memory_ = DeviceMemory(*device_, 1);
}

void TensorDevice::With(const Tensor& tensor,
                        const std::function<void(const Tensor&)>& collective) {
  if (!device_.has_value()) return collective(tensor);
  if (memory_.bytes() < tensor.bytes()) {
    memory_ = DeviceMemory(*device_, tensor.bytes());
  }
  memory_.Write(tensor.data(), tensor.bytes());
  collective(Tensor(memory_.data(), tensor.data_type(), tensor.shape(),
                    {DeviceType::kCuda, *device_}));
  // After the collective, in the same stream.
  memory_.Read(tensor.data(), tensor.bytes());
}

}  // namespace muster::examples
