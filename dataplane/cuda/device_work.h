// What a collective of CUDA tensors is to those who wait for it.

#ifndef MUSTER_DATAPLANE_CUDA_DEVICE_WORK_H_
#define MUSTER_DATAPLANE_CUDA_DEVICE_WORK_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "dataplane/cuda/api.h"
#include "dataplane/mutex.h"
#include "dataplane/work.h"

namespace muster::dataplane::cuda {

// Those that wait for something on the host, and how whoever completes it hears
// of them.
struct HostWaiters {
  std::atomic<int> count{0};
  // Notified when the first one comes, with no lock held: a notice may be
  // missed.
  CondVar came;
};

// One started collective. At once or later it, or the last of it, is in a
// stream; in the end it is over: complete, or about to be.
class DeviceWork : public PromisedWork {
 public:
  // `api` is used until Over. `waiters` may be null.
  DeviceWork(std::string description, const Api& api, int device, bool blocks,
             std::shared_ptr<HostWaiters> waiters)
      : PromisedWork(std::move(description)),
        api_(api),
        device_(device),
        blocks_(blocks),
        waiters_(std::move(waiters)) {}

  // It is in a stream, in which `end` comes after it. Of a receive it may be
  // known by then from whom it comes.
  void Given(Event end, int source_rank = -1);
  // `end` is somebody else's from here on.
  void Over();

  using PromisedWork::Wait;
  [[nodiscard]] absl::Status Wait(Instant deadline) override;
  [[nodiscard]] absl::Status Synchronize() override;
  // Also between what Given says and the completion.
  int source_rank() const override;

 private:
  const Api& api_;
  const int device_;
  // Whether the host waits, too: it asked for that, or it is a barrier.
  const bool blocks_;
  const std::shared_ptr<HostWaiters> waiters_;

  Mutex mutex_;
  CondVar changed_;
  Event end_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int> given_source_{-1};
};

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_DEVICE_WORK_H_
