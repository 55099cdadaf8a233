#include "client/examples/place.h"

namespace muster::examples {

Place::Place(std::optional<int> device) : device_(device) {
  if (device_.has_value()) memory_ = DeviceMemory(*device_, 1);
}

void Place::Run(const Tensor& tensor,
                const std::function<void(const Tensor&)>& collective) {
  if (!device_.has_value()) return collective(tensor);
  if (memory_.bytes() < tensor.bytes()) {
    memory_ = DeviceMemory(*device_, tensor.bytes());
  }
  memory_.Write(tensor.data(), tensor.bytes());
  collective(Tensor(memory_.data(), tensor.data_type(), tensor.shape(),
                    {DeviceType::kCuda, *device_}));
  // Behind the collective, in the same stream.
  memory_.Read(tensor.data(), tensor.bytes());
}

}  // namespace muster::examples
