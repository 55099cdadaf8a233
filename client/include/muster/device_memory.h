// Memory of CUDA devices for programs that are built without CUDA: one program
// runs with and without devices.
//
//   muster::DeviceMemory memory(/*device=*/0, count * sizeof(float));
//   memory.Write(values.data(), memory.bytes());
//   muster::AllReduce({memory.data(), muster::DataType::kFloat32, {count},
//                      {muster::DeviceType::kCuda, 0}});
//   memory.Read(values.data(), memory.bytes());   // the sums

#ifndef MUSTER_DEVICE_MEMORY_H_
#define MUSTER_DEVICE_MEMORY_H_

#include <cstddef>

#include "muster/base/export.h"

namespace MUSTER_EXPORT muster {

// Returns how many CUDA devices this process can use; if 0, `musterctl version
// --verbose` says why. The first call detects them; later calls return the same
// number.
int CudaDeviceCount();

// DeviceMemory is memory of one device. The destructor frees it, unless the
// object is a view (Of); freeing waits for the work under way on the device.
// Movable. One thread at a time.
//
// The methods are ordered with the calling thread's current stream (streams.h),
// as collectives are.
class DeviceMemory {
 public:
  // Has no memory.
  DeviceMemory() = default;
  // Allocates `bytes` on cuda:`device`. Throws DistError: kFailedPrecondition
  // (no CUDA here; the text says why), kInvalidArgument (no such device),
  // kResourceExhausted (the device has no room for `bytes`).
  DeviceMemory(int device, size_t bytes);
  // Makes a view of `bytes` at `data` on the device, for instance of a
  // SymmetricTensor's memory. The owner frees the memory, which must outlive
  // the view. Throws what the constructor throws.
  static DeviceMemory Of(int device, void* data, size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  // A device address, which the host cannot read. Null if nothing was
  // allocated.
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int device() const { return device_; }

  // Copies `bytes` between host memory and this memory at `offset`, and returns
  // when they have arrived. Throws DistError: kInvalidArgument (this memory has
  // fewer bytes), kInternal (CUDA refuses, or reports an earlier failure of the
  // device).
  void Write(const void* from, size_t bytes, size_t offset = 0);
  void Read(void* to, size_t bytes, size_t offset = 0) const;

  // Sets all bytes to zero; the host does not wait. Throws as Write.
  void Clear();

 private:
  void Copy(void* to, const void* from, size_t bytes, size_t offset) const;

  int device_ = 0;
  size_t bytes_ = 0;
  std::byte* data_ = nullptr;
  bool owns_ = true;
};

// Blocks the host until cuda:`device` has finished all work that was submitted
// to the calling thread's current stream. Throws DistError: kFailedPrecondition
// (no CUDA here), kInvalidArgument (no such device), kInternal (CUDA reports a
// failure of the device).
void SynchronizeCurrentStream(int device);

}  // namespace muster

#endif  // MUSTER_DEVICE_MEMORY_H_
