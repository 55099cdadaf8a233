// Memory of CUDA devices, for programs that are built without CUDA: one program
// runs where there are devices and where there are none.
//
//   muster::DeviceMemory memory(/*device=*/0, count * sizeof(float));
//   memory.Write(values.data(), memory.bytes());
//   muster::AllReduce({memory.data(), muster::DataType::kFloat32, {count},
//                      {muster::DeviceType::kCuda, 0}});
//   memory.Read(values.data(), memory.bytes());   // the sums

#ifndef MUSTER_CLIENT_DEVICE_MEMORY_H_
#define MUSTER_CLIENT_DEVICE_MEMORY_H_

#include <cstddef>

namespace muster {

// How many CUDA devices this process can use. None: 0; `musterctl version
// --verbose` says why. Looked at once.
int CudaDeviceCount();

// Memory of one device, which it frees when it goes, but for somebody else's;
// what is under way on the device is waited for then. Movable. One thread at a
// time.
//
// What the methods do is ordered with the calling thread's current stream
// (streams.h), as collectives are.
class DeviceMemory {
 public:
  // None.
  DeviceMemory() = default;
  // Throws DistError: kFailedPrecondition (no CUDA here, and why),
  // kInvalidArgument (no such device), kResourceExhausted (it has no room for
  // `bytes`).
  DeviceMemory(int device, size_t bytes);
  // `bytes` at `data` on the device, of somebody who frees them, and outlives
  // this: a SymmetricTensor's, for instance. Throws as the other one.
  static DeviceMemory Of(int device, void* data, size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  // On the device: not for the host to read. Null of no bytes.
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int device() const { return device_; }

  // Copies `bytes` from or to memory of the host, from the start of this or
  // from `offset` on, and returns when they are there. Throws DistError:
  // kInvalidArgument (more than this has), kInternal (CUDA refuses, or reports
  // an earlier failure of the device).
  void Write(const void* from, size_t bytes, size_t offset = 0);
  void Read(void* to, size_t bytes, size_t offset = 0) const;

  // Makes all of it zero; the host does not wait. Throws as Write.
  void Clear();

 private:
  void Copy(void* to, const void* from, size_t bytes, size_t offset) const;

  int device_ = 0;
  size_t bytes_ = 0;
  std::byte* data_ = nullptr;
  bool owns_ = true;
};

// Waits on the host until what the calling thread's current stream of
// cuda:`device` has been given is done. Throws DistError: kFailedPrecondition
// (no CUDA here), kInvalidArgument (no such device), kInternal (CUDA reports a
// failure of the device).
void SynchronizeCurrentStream(int device);

}  // namespace muster

#endif  // MUSTER_CLIENT_DEVICE_MEMORY_H_
