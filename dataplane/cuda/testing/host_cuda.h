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
// memory is host memory. As on a device, work given to a stream is done at some
// later time: code that does not wait for it reads the old contents. All state
// is global to the process, and `devices` of the first call counts. A call that
// CUDA would refuse returns an error and is recorded as a misuse. Leaks reports
// streams, events and memory that were not freed. Thread-safe.
Api HostCudaApi(int devices = 2);

// Does `kernel` on the stream, as a kernel is launched. Null is the current
// device's default stream. `kernel` may wait for other streams.
void Launch(Stream stream, std::function<void()> kernel);

// Waits for all that all streams have been given, also those that nobody knows
// any more: CUDA does that before it frees memory.
void SynchronizeAll();

// Whether this is memory that Malloc gave out, with so many bytes behind it.
bool IsDeviceMemory(const void* data, size_t bytes);

// Captures `stream` into a CUDA graph, in the global mode, until EndCapture:
// nothing may be put into it that this stand-in would do, and, as CUDA has it,
// no thread may call what could wait for the device but those that have said
// that they are no part of it (ThreadExchangeStreamCaptureMode).
void BeginCapture(Stream stream);
void EndCapture(Stream stream);

// Whether a context of the device was made: by a SetDevice. Device 0 has none
// before that, either.
bool HasContext(int device);

// What was used wrongly since the last call.
std::vector<std::string> TakeMisuses();

// How many streams, events and pieces of memory there are.
struct Leaks {
  size_t streams = 0;
  size_t events = 0;
  size_t memory = 0;
};
Leaks CountLeaks();

}  // namespace muster::dataplane::cuda::testing

#endif  // MUSTER_DATAPLANE_CUDA_TESTING_HOST_CUDA_H_
