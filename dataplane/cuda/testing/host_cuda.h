// A CUDA runtime without a GPU: the seam's stand-in for tests.

#ifndef MUSTER_DATAPLANE_CUDA_TESTING_HOST_CUDA_H_
#define MUSTER_DATAPLANE_CUDA_TESTING_HOST_CUDA_H_

#include <functional>
#include <string>
#include <vector>

#include "dataplane/cuda/api.h"

namespace muster::dataplane::cuda::testing {

// Functions that do on the host what CUDA does on devices: a stream is a thread
// that does one thing after the other, an event is a place in that, and device
// memory is memory. As on a device, what was given to a stream is done at some
// later time: who does not wait for it reads what was there before. Everything
// is of the whole process, and `devices` of the first call counts. A call that
// CUDA would refuse returns an error and is noted as a misuse. Streams, events
// and memory that are not given back are noted by Leaks. Thread-safe.
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
