// The current CUDA stream and device of a thread.

#ifndef MUSTER_DATAPLANE_CUDA_STREAM_H_
#define MUSTER_DATAPLANE_CUDA_STREAM_H_

#include "dataplane/cuda/api.h"
#include "muster/base/status.h"

namespace muster::dataplane::cuda {

// This thread's current stream on `device`: collectives begin after the work on
// it. The default stream (null) until SetCurrentStream.
Stream CurrentStream(int device);

// Affects this thread only.
void SetCurrentStream(int device, Stream stream);

// OK if work can be enqueued in the current stream. kFailedPrecondition while
// it is captured into a CUDA graph: the end of captured work would not be
// noticed, nor its errors.
Status CheckIsNotCaptured(const Api& api, int device);

// To be called first by every thread of muster. Its CUDA calls then do not
// become part of, and do not break, graphs that the program captures at the
// same time. And the thread stays on its last device: going back to device 0
// would create a context there, some 100 MB per process.
void BeginOwnThread(const Api& api);

// Whether `event` has been reached: kSuccess, kNotReady or an error. Clears
// kNotReady, so that no caller gets it as CUDA's last error.
Error Query(const Api& api, Event event);

// Makes `device` CUDA's current device of the thread, until it is destroyed.
class DeviceGuard {
 public:
  DeviceGuard(const Api& api, int device);
  ~DeviceGuard();

  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const Api& api_;
  int before_ = -1;  // -1: nothing to restore
};

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_STREAM_H_
