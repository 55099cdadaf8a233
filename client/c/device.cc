// CUDA streams and memory.

#include <cstddef>
#include <cstdint>

#include "client/c/error.h"
#include "muster/device_memory.h"
#include "muster/muster.h"
#include "muster/streams.h"

struct muster_device_memory {
  muster::DeviceMemory memory;
};

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::Need;

muster_status muster_current_stream(int32_t device, void** stream) {
  return Guard(__func__, [&] {
    void*& current = Need(stream, "stream");
    current = muster::CurrentStream(device);
  });
}

muster_status muster_set_current_stream(int32_t device, void* stream) {
  return Guard(__func__, [&] { muster::SetCurrentStream(device, stream); });
}

muster_status muster_synchronize_current_stream(int32_t device) {
  return Guard(__func__, [&] { muster::SynchronizeCurrentStream(device); });
}

muster_status muster_cuda_device_count(int32_t* count) {
  return Guard(__func__,
               [&] { Need(count, "count") = muster::CudaDeviceCount(); });
}

muster_status muster_device_memory_new(int32_t device, size_t bytes,
                                       muster_device_memory** memory) {
  return GuardHandle(__func__, memory, "memory", [&] {
    return new muster_device_memory{muster::DeviceMemory(device, bytes)};
  });
}

void muster_device_memory_release(muster_device_memory* memory) {
  delete memory;
}

void* muster_device_memory_data(const muster_device_memory* memory) {
  return memory == nullptr ? nullptr : memory->memory.data();
}

muster_status muster_device_memory_write(muster_device_memory* memory,
                                         const void* from, size_t bytes,
                                         size_t offset) {
  return Guard(__func__, [&] {
    if (bytes != 0) Need(static_cast<const char*>(from), "from");
    Need(memory, "memory").memory.Write(from, bytes, offset);
  });
}

muster_status muster_device_memory_read(muster_device_memory* memory, void* to,
                                        size_t bytes, size_t offset) {
  return Guard(__func__, [&] {
    if (bytes != 0) Need(static_cast<char*>(to), "to");
    Need(memory, "memory").memory.Read(to, bytes, offset);
  });
}

muster_status muster_device_memory_clear(muster_device_memory* memory) {
  return Guard(__func__, [&] { Need(memory, "memory").memory.Clear(); });
}
