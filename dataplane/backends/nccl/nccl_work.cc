#include "dataplane/backends/nccl/nccl_work.h"

#include "dataplane/cuda/stream.h"

namespace muster::dataplane::nccl {

void NcclWork::Given(cuda::Event end) {
  MutexLock lock(mutex_);
  end_ = end;
  changed_.NotifyAll();
}

void NcclWork::Over() {
  MutexLock lock(mutex_);
  end_ = nullptr;
  over_ = true;
  changed_.NotifyAll();
}

absl::Status NcclWork::Wait(Instant deadline) {
  if (IsCompleted()) return status();
  ++*watched_;
  const absl::Status status = PromisedWork::Wait(deadline);
  --*watched_;
  return status;
}

absl::Status NcclWork::Synchronize() {
  if (blocks_) return Wait(Instant::max());
  {
    MutexLock lock(mutex_);
    while (end_ == nullptr && !over_) changed_.Wait(mutex_);
    if (!over_) {
      const cuda::DeviceGuard guard(cuda_, device_);
      return cuda::ToStatus(
          cuda_, cuda_.StreamWaitEvent(cuda::CurrentStream(device_), end_, 0),
          "cudaStreamWaitEvent");
    }
  }
  // Its completion is at hand.
  return Wait(Instant::max());
}

}  // namespace muster::dataplane::nccl
