#include "dataplane/cuda/device_work.h"

#include "dataplane/cuda/stream.h"

namespace muster::dataplane::cuda {

void DeviceWork::Given(Event end, int source_rank) {
  given_source_.store(source_rank);
  MutexLock lock(mutex_);
  end_ = end;
  changed_.NotifyAll();
}

void DeviceWork::Over() {
  MutexLock lock(mutex_);
  end_ = nullptr;
  over_ = true;
  changed_.NotifyAll();
}

int DeviceWork::source_rank() const {
  return IsCompleted() ? PromisedWork::source_rank() : given_source_.load();
}

absl::Status DeviceWork::Wait(Instant deadline) {
  if (IsCompleted()) return status();
  if (waiters_ != nullptr && waiters_->count++ == 0) waiters_->came.NotifyAll();
  absl::Status status = PromisedWork::Wait(deadline);
  if (waiters_ != nullptr) --waiters_->count;
  return status;
}

absl::Status DeviceWork::Synchronize() {
  if (blocks_) return Wait(Instant::max());
  {
    MutexLock lock(mutex_);
    while (end_ == nullptr && !over_) changed_.Wait(mutex_);
    if (!over_) {
      const DeviceGuard guard(api_, device_);
      return ToStatus(api_,
                      api_.StreamWaitEvent(CurrentStream(device_), end_, 0),
                      "cudaStreamWaitEvent");
    }
  }
  // Its completion is at hand.
  return Wait(Instant::max());
}

}  // namespace muster::dataplane::cuda
