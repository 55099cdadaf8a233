#ifndef MUSTER_CLIENT_EXAMPLES_PLACE_H_
#define MUSTER_CLIENT_EXAMPLES_PLACE_H_

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "client/muster.h"

namespace muster::examples {

// Floats on the host, for collectives of the default group: in symmetric memory
// where the group has that on the CPU, so that ranks of one host add them up
// where they are; elsewhere, or where there is not so much of it (which rank 0
// logs), in memory as any other. Movable.
class Floats {
 public:
  // All zero. All ranks make theirs at once. Throws DistError.
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
  // Of the two, one is empty.
  mutable std::vector<float> ordinary_;
};

// Place is where a training's collectives find their tensors: in the host's
// memory, or in a CUDA device's. The mathematics of the examples is on the host
// in both cases, since they have no kernels of their own: on a device values
// are copied there and back around each collective.
class Place {
 public:
  // `device`: its index; none: the host. Throws DistError
  // (kFailedPrecondition, kInvalidArgument): there is no such device.
  explicit Place(std::optional<int> device);

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

#endif  // MUSTER_CLIENT_EXAMPLES_PLACE_H_
