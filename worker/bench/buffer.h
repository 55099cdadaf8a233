#ifndef MUSTER_WORKER_BENCH_BUFFER_H_
#define MUSTER_WORKER_BENCH_BUFFER_H_

#include <cstddef>
#include <vector>

#include "client/muster.h"

namespace muster::worker::bench {

// Memory for collectives, on the CPU or on a CUDA device, with the host's view
// of it. It may be symmetric memory of the default group; then all ranks must
// make theirs at the same time.
class Buffer {
 public:
  // All zero. Throws DistError (kResourceExhausted, and what AllocateSymmetric
  // throws), std::bad_alloc.
  Buffer(Device device, size_t bytes, bool is_symmetric = false);

  // For collectives; on a device not for the host.
  std::byte* data();

  // The host's copy, or the memory itself: written before Give, read after
  // Take. On a device both wait for what its stream has been given.
  std::byte* host() { return host_; }
  const std::byte* host() const { return host_; }
  void Give();
  void Take();

  void Clear();

 private:
  const Device device_;
  const size_t bytes_;
  SymmetricTensor symmetric_;
  // The device's, its own or the symmetric tensor's.
  DeviceMemory memory_;
  // The host's, but for a symmetric tensor on the CPU.
  std::vector<std::byte> ordinary_;
  std::byte* host_ = nullptr;
};

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_BUFFER_H_
