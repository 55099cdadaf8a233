#include "dataplane/cuda/device_work.h"

#include <memory>
#include <utility>

#include "dataplane/cuda/stream.h"

namespace muster::dataplane::cuda {
namespace {

// Counts a thread that waits on the host, while this object lives.
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
  {
    MutexLock lock(mutex_);
    end_ = end;
  }
  Placed();
}

void DeviceWork::GivenTo(Stream stream, Event end) {
  {
    MutexLock lock(mutex_);
    stream_ = stream;
  }
  Given(end);
}

void DeviceWork::Over() {
  {
    MutexLock lock(mutex_);
    end_ = nullptr;
    over_ = true;
  }
  Placed();
}

void DeviceWork::Placed() {
  if (is_placed_.load(std::memory_order_relaxed)) return;
  is_placed_.store(true, std::memory_order_release);
  is_placed_.notify_all();
}

int DeviceWork::source_rank() const {
  return IsCompleted() ? PromisedWork::source_rank() : given_source_.load();
}

Status DeviceWork::Wait(Instant deadline) {
  if (IsCompleted()) return status();
  const Waiting waiting(waiters_);
  return PromisedWork::Wait(deadline);
}

Status DeviceWork::Synchronize() {
  if (blocks_) return Wait(Instant::max());
  if (!is_placed_.load(std::memory_order_acquire)) {
    const Waiting waiting(waiters_);
    is_placed_.wait(false, std::memory_order_acquire);
  }
  {
    MutexLock lock(mutex_);
    if (!over_) {
      const Stream current = CurrentStream(device_);
      if (stream_ == current) return OkStatus();
      const DeviceGuard guard(api_, device_);
      return ToStatus(api_, api_.StreamWaitEvent(current, end_, 0),
                      "cudaStreamWaitEvent");
    }
  }
  // Over has been called, so it completes soon.
  return Wait(Instant::max());
}

const std::string& DeviceWork::description() const {
  MutexLock lock(mutex_);
  if (description_.empty()) description_ = collective_.Describe();
  return description_;
}

}  // namespace muster::dataplane::cuda
