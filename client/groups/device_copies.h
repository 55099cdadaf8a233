// Lets groups that take only device tensors run collectives on CPU tensors.

#ifndef MUSTER_CLIENT_GROUPS_DEVICE_COPIES_H_
#define MUSTER_CLIENT_GROUPS_DEVICE_COPIES_H_

#include <utility>
#include <vector>

#include "muster/device_memory.h"
#include "muster/process_group.h"

namespace muster::internal {

// Provides the tensors of one collective in memory that its group accepts: as
// they are or, if the group takes no CPU tensors, as copies on the group's
// device (the device to which the group is bound, else the current one of the
// calling thread). Used by one thread at a time.
class DeviceCopies {
 public:
  // Throws DistError (kFailedPrecondition) if the group takes no CPU tensors
  // and there is no CUDA here.
  explicit DeviceCopies(const ProcessGroup& group);

  // In: tensors that the collective reads. Out: tensors that it writes.
  Tensor In(const Tensor& tensor);
  Tensor Out(const Tensor& tensor);
  std::vector<Tensor> In(const std::vector<Tensor>& tensors);
  std::vector<Tensor> Out(const std::vector<Tensor>& tensors);

  // Waits for the collective and then writes the host's tensors. Returns the
  // source rank of a receive. Throws what Work::Wait throws.
  int End(Work work);

 private:
  Tensor Allocate(const Tensor& tensor);

  int device_ = -1;  // -1: no copies
  std::vector<DeviceMemory> memory_;
  // Tensors to copy back, with their index in memory_.
  std::vector<std::pair<Tensor, size_t>> written_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_DEVICE_COPIES_H_
