#ifndef MUSTER_CLIENT_EXAMPLES_PLACE_H_
#define MUSTER_CLIENT_EXAMPLES_PLACE_H_

#include <functional>
#include <optional>
#include <vector>

#include "client/muster.h"

namespace muster::examples {

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
    Run(Tensor(values), collective);
  }

 private:
  void Run(const Tensor& tensor,
           const std::function<void(const Tensor&)>& collective);

  const std::optional<int> device_;
  // As large as the largest tensor so far.
  DeviceMemory memory_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_PLACE_H_
