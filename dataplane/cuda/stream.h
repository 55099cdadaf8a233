// The current CUDA stream and device of a thread.

#ifndef MUSTER_DATAPLANE_CUDA_STREAM_H_
#define MUSTER_DATAPLANE_CUDA_STREAM_H_

#include "base/status.h"
#include "dataplane/cuda/api.h"

namespace muster::dataplane::cuda {

// The stream on which this thread's work for `device` is ordered: collectives
// begin after what is on it. The default stream (null) until it is set.
Stream CurrentStream(int device);

// Of this thread, from now on.
void SetCurrentStream(int device, Stream stream);

// OK if something can be put into that stream for CUDA to do;
// kFailedPrecondition while it is captured into a CUDA graph: who waits for its
// end, and says what went wrong, would never hear of it.
Status CheckIsNotCaptured(const Api& api, int device);

// What a thread of muster's own begins with. What it calls then is no part of
// the CUDA graphs that the program captures at the same time, and does not
// spoil them; and it stays on the device that it was last on: to go back to
// device 0 would make a context there, in each process some 100 MB.
void BeginOwnThread(const Api& api);

// Whether `event` has been reached: kSuccess, kNotReady or an error. As it is
// no error that it has not, nobody finds that one as CUDA's last.
Error Query(const Api& api, Event event);

// Makes `device` the current one of the thread, as CUDA has it, for as long as
// it lives.
class DeviceGuard {
 public:
  DeviceGuard(const Api& api, int device);
  ~DeviceGuard();

  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const Api& api_;
  int before_ = -1;  // none to go back to
};

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_STREAM_H_
