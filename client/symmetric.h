// Tensors in memory that the ranks of a group reach on each other.
//
//   using muster::DataType;
//   auto sums = muster::AllocateSymmetric(group, DataType::kBfloat16, {count});
//   muster::AllReduce(sums.tensor(), {.group = group});

#ifndef MUSTER_CLIENT_SYMMETRIC_H_
#define MUSTER_CLIENT_SYMMETRIC_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/process_group.h"
#include "dataplane/backend.h"
#include "dataplane/tensor.h"

namespace muster {

// SymmetricTensor owns one rank's memory, which is freed with it, and has a
// tensor of it. Whatever works on that must be complete by then, on this rank;
// others free theirs when they like. A view of it that is used later is a
// segmentation fault, or, in a collective of its group, kInvalidArgument (on
// the CPU). The group may be gone, or have failed:
// the memory is its owner's as before, and good for every other group, as any
// memory of its device. Movable: what it was moved from has nothing. The
// functions of one object are called by one thread at a time.
class SymmetricTensor {
 public:
  // Nothing.
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

  // float32[0] if it has nothing. Contiguous and aligned to at least 256 bytes.
  const Tensor& tensor() const { return tensor_; }

 private:
  std::shared_ptr<dataplane::SymmetricMemory> memory_;
  Tensor tensor_;
};

struct AllocateSymmetricOptions {
  // Empty: CUDA, where the group takes CUDA tensors, else the CPU.
  std::optional<DeviceType> device = std::nullopt;
  // What the ranks may take to come. Zero: the group's.
  std::chrono::milliseconds timeout{0};
};

// A tensor of every rank of `group` (null: the default group), all of one size
// in bytes. All ranks make the call, in one order with the group's collectives,
// which threads of a rank that both allocate, or do either, keep among
// themselves; it returns when all have. What the memory holds then is not
// defined.
//
// The shm backend has it on the CPU: in memory that the ranks of each host
// share, in which its collectives combine and copy where the tensors are, if
// those are not small (of several hosts those of one tensor, and not
// all_to_all, gather and scatter); where the ranks share none it is memory as
// any other. It is there at once. The first rank of a host makes what all ranks
// of that host have: its control group pays for it.
// In a process that was forked off it is the same memory: what that
// writes, its parent has; what it frees, its parent keeps.
//
// The nccl backend has it, from NCCL 2.27 on, on the device that the group is
// bound to, or else on the thread's current one. The group's collectives whose
// tensors all lie in such memory need no copies in between; with
// NcclOptions::CtaPolicy::kZero (2.28) copy engines move what they can, and no
// processor of the device does. By NCCL's documentation its reductions of
// float16 and bfloat16 there add in float32 and round once, where else each
// step rounds, and those of the float8 types add in float16; where the devices
// have no way to each other's memory it is memory as any other.
//
// Throws DistError: kInvalidArgument (no elements, or more than 63 bits of
// bytes), kUnimplemented (the group's backend has no such memory: gloo, mpi,
// an older NCCL), and on the CPU kResourceExhausted (there is not so much
// memory, or a process has thousands of pieces of it: on all ranks alike, with
// what is left and whose limit that is; culprits() is the rank that has it
// not); after these the group goes on. And what a collective throws, which ends
// the group: not all ranks came in time, or they ask for different sizes (both
// named), or a device has not so much memory. In a group that this process is
// not in, the result has nothing.
SymmetricTensor AllocateSymmetric(const std::shared_ptr<ProcessGroup>& group,
                                  DataType data_type,
                                  const std::vector<int64_t>& shape,
                                  const AllocateSymmetricOptions& options = {});

}  // namespace muster

#endif  // MUSTER_CLIENT_SYMMETRIC_H_
