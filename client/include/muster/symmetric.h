// Symmetric tensors: each rank's memory can be accessed by all ranks of a
// group.
//
//   using muster::DataType;
//   auto sums = muster::AllocateSymmetric(group, DataType::kBfloat16, {count});
//   muster::AllReduce(sums.tensor(), {.group = group});

#ifndef MUSTER_SYMMETRIC_H_
#define MUSTER_SYMMETRIC_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/export.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/tensor.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

// SymmetricTensor owns one rank's memory and has a tensor in it. The destructor
// frees the memory. By then everything that works on the memory must be
// complete on this rank; other ranks free their memory independently. A view
// that is used after that causes a segmentation fault, or kInvalidArgument in a
// collective of the group on the CPU. The group may have ended or failed: the
// owner keeps the memory, and every other group can use it like any memory of
// its device. Movable: a moved-from object has no memory. One thread at a time
// may call the functions of an object.
class SymmetricTensor {
 public:
  // Has no memory.
  SymmetricTensor() = default;
  SymmetricTensor(std::shared_ptr<dataplane::SymmetricMemory> memory,
                  Tensor tensor)
      : memory_(std::move(memory)), tensor_(std::move(tensor)) {}

  SymmetricTensor(SymmetricTensor&& other) noexcept
      : memory_(std::move(other.memory_)),
        tensor_(std::exchange(other.tensor_, Tensor())) {}
  SymmetricTensor& operator=(SymmetricTensor&& other) noexcept {
    tensor_ = std::exchange(other.tensor_, Tensor());
    memory_ = std::move(other.memory_);
    return *this;
  }

  // float32[0] if there is no memory. Contiguous and aligned to at least 256
  // bytes.
  const Tensor& tensor() const { return tensor_; }

 private:
  std::shared_ptr<dataplane::SymmetricMemory> memory_;
  Tensor tensor_;
};

struct AllocateSymmetricOptions {
  // Empty: CUDA if the group takes CUDA tensors, else the CPU.
  std::optional<DeviceType> device = std::nullopt;
  // How long the ranks may take to make the call. Zero: the group's timeout.
  std::chrono::milliseconds timeout{0};
};

// Allocates a tensor on every rank of `group` (null: the default group), all of
// the same size in bytes. All ranks make the call, in one order with the
// group's collectives; if several threads of a rank allocate or start
// collectives, they must keep that order among themselves. It returns when all
// ranks have made the call. The initial content is undefined.
//
// On the CPU the shm backend allocates memory that the ranks of each host
// share. Its collectives combine and copy data directly in these tensors,
// except small ones. In a group of several hosts only collectives of one tensor
// do so, and not all_to_all, gather and scatter. If the ranks share no memory,
// it is ordinary memory. All pages are allocated at once. The first rank of a
// host allocates for all ranks of that host: its cgroup is charged. A forked
// child has the same memory: its parent sees what it writes, and keeps what it
// frees.
//
// From NCCL 2.27 on the nccl backend allocates it on the device to which the
// group is bound, or else on the thread's current device. The group's
// collectives whose tensors all lie in such memory need no copies in between;
// with NcclOptions::CtaPolicy::kZero (2.28) copy engines move what they can,
// without a processor of the device. According to NCCL's documentation,
// reductions of float16 and bfloat16 in this memory add in float32 and round
// once, whereas in other memory each step rounds; reductions of the float8
// types add in float16. If the devices cannot reach each other's memory, it is
// ordinary memory.
//
// Throws DistError: kInvalidArgument (no elements, or a size in bytes of more
// than 63 bits), kUnimplemented (the group's backend has no such memory: gloo,
// mpi, an older NCCL), and on the CPU kResourceExhausted (there is not enough
// memory, or a process has thousands of such allocations; all ranks throw it,
// with what is left and whose limit that is; culprits() has the rank that lacks
// the memory). After these errors the group goes on.
// Also throws what a collective throws, which ends the group, if not all ranks
// came in time, if they ask for different sizes (the text names both), or if a
// device has not enough memory.
// If this process is not in the group, the result has no memory.
SymmetricTensor AllocateSymmetric(const std::shared_ptr<ProcessGroup>& group,
                                  DataType data_type,
                                  const std::vector<int64_t>& shape,
                                  const AllocateSymmetricOptions& options = {});

}  // namespace muster

#endif  // MUSTER_SYMMETRIC_H_
