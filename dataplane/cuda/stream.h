// Which stream a thread works on.

#ifndef MUSTER_DATAPLANE_CUDA_STREAM_H_
#define MUSTER_DATAPLANE_CUDA_STREAM_H_

#include "dataplane/cuda/api.h"

namespace muster::dataplane::cuda {

// The stream on which this thread's work for `device` is ordered: collectives
// begin after what is on it. The default stream (null) until it is set.
Stream CurrentStream(int device);

// Of this thread, from now on.
void SetCurrentStream(int device, Stream stream);

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
