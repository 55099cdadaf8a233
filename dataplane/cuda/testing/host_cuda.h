// A fake CUDA runtime for tests, without a GPU.

#ifndef MUSTER_DATAPLANE_CUDA_TESTING_HOST_CUDA_H_
#define MUSTER_DATAPLANE_CUDA_TESTING_HOST_CUDA_H_

#include <functional>
#include <string>
#include <vector>

#include "dataplane/cuda/api.h"

namespace muster::dataplane::cuda::testing {

// Functions that do on the host what CUDA does on devices: a stream is a thread
// that runs one task after the other, an event is a position in it, and device
// memory is host memory. As on a device, enqueued work runs at some later time:
// code that does not wait for it reads the old contents. All state is global to
// the process, and `devices` of the first call counts. A call that CUDA would
// refuse returns an error and is recorded as a misuse. Leaks reports streams,
// events and memory that were not freed. Thread-safe.
Api HostCudaApi(int devices = 2);

// Enqueues `kernel` in the stream, like a kernel launch. Null is the current
// device's default stream. `kernel` may wait for other streams.
void Launch(Stream stream, std::function<void()> kernel);

// Waits for all work of all streams, destroyed ones too, as CUDA does before it
// frees memory.
void SynchronizeAll();

// Whether `data` points to `bytes` bytes of memory from Malloc.
bool IsDeviceMemory(const void* data, size_t bytes);

// Captures `stream` into a CUDA graph, in the global mode, until EndCapture.
// Until then no work may be enqueued in it, and, as in CUDA, a thread must not
// make a call that could wait for the device unless it has opted out with
// ThreadExchangeStreamCaptureMode.
void BeginCapture(Stream stream);
void EndCapture(Stream stream);

// Whether SetDevice has created a context on the device. Device 0 has none
// before that, either.
bool HasContext(int device);

// The misuses since the last call.
std::vector<std::string> TakeMisuses();

// The number of existing streams, events and memory blocks.
struct Leaks {
  size_t streams = 0;
  size_t events = 0;
  size_t memory = 0;
};
Leaks CountLeaks();

}  // namespace muster::dataplane::cuda::testing

#endif  // MUSTER_DATAPLANE_CUDA_TESTING_HOST_CUDA_H_
