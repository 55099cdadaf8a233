#ifndef MUSTER_WORKER_BENCH_BUFFER_H_
#define MUSTER_WORKER_BENCH_BUFFER_H_

#include <cstddef>
#include <vector>

#include "muster/muster.hpp"

namespace muster::worker::bench {

// Memory for collectives, on the CPU or on a CUDA device, with access by the
// host. With symmetric memory of the default group, all ranks must construct
// theirs at the same time.
class Buffer {
 public:
  // All zero. Throws DistError (kResourceExhausted, and the errors of
  // AllocateSymmetric), std::bad_alloc.
  Buffer(Device device, size_t bytes, bool is_symmetric = false);

  // For collectives; the host must not access it on a device.
  std::byte* data();

  // The host's copy, or on the CPU the memory itself. Write it before Give,
  // read it after Take. On a device both wait for the work on its stream.
  std::byte* host() { return host_; }
  const std::byte* host() const { return host_; }
  void Give();
  void Take();

  void Clear();

 private:
  const Device device_;
  const size_t bytes_;
  SymmetricTensor symmetric_;
  // The device's memory, its own or that of the symmetric tensor.
  DeviceMemory memory_;
  // The host's memory, except for a symmetric tensor on the CPU.
  std::vector<std::byte> ordinary_;
  std::byte* host_ = nullptr;
};

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_BUFFER_H_
