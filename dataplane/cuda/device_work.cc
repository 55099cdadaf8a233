#include "dataplane/cuda/device_work.h"

#include <memory>
#include <utility>

#include "dataplane/cuda/stream.h"

namespace muster::dataplane::cuda {
namespace {

// Somebody waits on the host, as long as it lives.
class Waiting {
 public:
  explicit Waiting(std::shared_ptr<HostWaiters> waiters)
      : waiters_(std::move(waiters)) {
    if (waiters_ != nullptr && waiters_->count++ == 0) {
      waiters_->came.NotifyAll();
    }
  }
  ~Waiting() {
    if (waiters_ != nullptr) --waiters_->count;
  }

  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const std::shared_ptr<HostWaiters> waiters_;
};

}  // namespace

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
  const Waiting waiting(waiters_);
  return PromisedWork::Wait(deadline);
}

absl::Status DeviceWork::Synchronize() {
  if (blocks_) return Wait(Instant::max());
  {
    MutexLock lock(mutex_);
    if (end_ == nullptr && !over_) {
      const Waiting waiting(waiters_);
      while (end_ == nullptr && !over_) changed_.Wait(mutex_);
    }
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
