// Lets groups that take only device tensors run collectives on CPU tensors.

#ifndef MUSTER_CLIENT_GROUPS_DEVICE_COPIES_H_
#define MUSTER_CLIENT_GROUPS_DEVICE_COPIES_H_

#include <utility>
#include <vector>

#include "client/device_memory.h"
#include "client/process_group.h"

namespace muster::internal {

// Provides the tensors of one collective where its group takes them: in place
// or, if the group takes no CPU tensors, as copies on the group's device. That
// is the device that the group is bound to, or else the calling thread's
// current one. Used by one thread at a time.
class DeviceCopies {
 public:
  // Throws DistError (kFailedPrecondition): the group takes no CPU tensors, and
  // there is no CUDA here.
  explicit DeviceCopies(const ProcessGroup& group);

  // For the collective to read, to write.
  Tensor In(const Tensor& tensor);
  Tensor Out(const Tensor& tensor);
  std::vector<Tensor> In(const std::vector<Tensor>& tensors);
  std::vector<Tensor> Out(const std::vector<Tensor>& tensors);

  // Waits for the collective itself; the host's tensors are written then.
  // Returns where a receive has come from. Throws what Work::Wait does.
  int End(Work work);

 private:
  Tensor Place(const Tensor& tensor);

  int device_ = -1;  // none: they stay where they are
  std::vector<DeviceMemory> memory_;
  // What is to be copied back, and from where in memory_.
  std::vector<std::pair<Tensor, size_t>> written_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_DEVICE_COPIES_H_
