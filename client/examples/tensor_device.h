#ifndef MUSTER_CLIENT_EXAMPLES_TENSOR_DEVICE_H_
#define MUSTER_CLIENT_EXAMPLES_TENSOR_DEVICE_H_

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "muster/muster.hpp"

namespace muster::examples {

// Floats on the host for collectives of the default group. They are in
// symmetric memory if the group has that on the CPU, so that ranks of one host
// add them in place; else, or if there is not enough of it (rank 0 logs that),
// in ordinary memory. Movable.
class Floats {
 public:
  // All zero. All ranks must construct theirs at the same time. Throws
  // DistError.
  explicit Floats(size_t count);

  std::span<float> values() const {
    return {static_cast<float*>(tensor().data()),
            static_cast<size_t>(tensor().element_count())};
  }
  Tensor tensor() const {
    return ordinary_.empty() ? symmetric_.tensor()
                             : Tensor(std::span(ordinary_));
  }

 private:
  SymmetricTensor symmetric_;
  // One of the two is empty.
  mutable std::vector<float> ordinary_;
};

// TensorDevice provides the memory of a training's collectives: on the host or
// on a CUDA device. The examples compute on the host in both cases, because
// they have no kernels: for a device, values are copied before and after each
// collective.
class TensorDevice {
 public:
  // `device` is an index; nullopt: the host. Throws DistError
  // (kFailedPrecondition, kInvalidArgument) if there is no such device.
  explicit TensorDevice(std::optional<int> device);

  // Calls `collective` with `values` as a tensor that it may change.
  template <typename T>
  void With(std::vector<T>& values,
            const std::function<void(const Tensor&)>& collective) {
    With(Tensor(values), collective);
  }
  void With(const Tensor& values,
            const std::function<void(const Tensor&)>& collective);

 private:
  const std::optional<int> device_;
  // As large as the largest tensor so far.
  DeviceMemory memory_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TENSOR_DEVICE_H_
