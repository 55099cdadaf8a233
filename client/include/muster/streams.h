
#include "muster/base/export.h"
// CUDA streams: how collectives are ordered with other work on a device.
//
//   cudaStream_t stream;
//   cudaStreamCreate(&stream);
//   muster::StreamGuard guard(0, stream);     // of this thread, on cuda:0
//   Fill<<<..., stream>>>(data);
//   auto work = muster::AllReduce(tensor, {.async_op = true});  // after Fill
//   work.Wait();                              // the stream waits, not the host
//   Read<<<..., stream>>>(data);              // finds the sums
//
// Work on another stream is not ordered with the collective: call Wait() while
// that stream is the current one, or use a CUDA event.

#ifndef MUSTER_STREAMS_H_
#define MUSTER_STREAMS_H_

namespace MUSTER_EXPORT muster {

// A cudaStream_t; null is the default stream.
using Stream = void*;

// The calling thread's current stream of cuda:`device`: the default stream
// until the thread sets another one, which must live while it is set. Both
// throw DistError (kInvalidArgument) if `device` is negative.
Stream CurrentStream(int device);
void SetCurrentStream(int device, Stream stream);

// Sets the current stream of the thread that makes it, and restores the
// previous one when it is destroyed, on the same thread.
class StreamGuard {
 public:
  StreamGuard(int device, Stream stream)
      : device_(device), before_(CurrentStream(device)) {
    SetCurrentStream(device, stream);
  }
  ~StreamGuard() { SetCurrentStream(device_, before_); }

  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  const int device_;
  const Stream before_;
};

}  // namespace muster

#endif  // MUSTER_STREAMS_H_
