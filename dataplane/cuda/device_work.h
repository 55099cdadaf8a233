// The Work of a collective on CUDA tensors.

#ifndef MUSTER_DATAPLANE_CUDA_DEVICE_WORK_H_
#define MUSTER_DATAPLANE_CUDA_DEVICE_WORK_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/collective.h"
#include "dataplane/cuda/api.h"
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

// One started collective. At some time it, or its last part, is enqueued in a
// stream; in the end it is over: complete, or about to be.
class DeviceWork : public PromisedWork {
 public:
  // Of `collective`, whose plan it does not keep. `api` is used until Over.
  // `waiters` may be null.
  DeviceWork(const Collective& collective, const Api& api, int device,
             bool blocks, std::shared_ptr<HostWaiters> waiters)
      : collective_(collective),
        api_(api),
        device_(device),
        blocks_(blocks),
        waiters_(std::move(waiters)) {
    collective_.plan = nullptr;
  }

  const Collective& collective() const { return collective_; }

  // It is in a stream, in which `end` comes after it. Of a receive it may be
  // known by then from whom it comes.
  void Given(Event end, int source_rank = -1);
  // It is in this stream, in which `end` comes after it.
  void GivenTo(Stream stream, Event end);
  // `end` is somebody else's from here on.
  void Over();

  using PromisedWork::Wait;
  [[nodiscard]] Status Wait(Instant deadline) override;
  [[nodiscard]] Status Synchronize() override;
  // Put together when it is first asked for, as few ask: that would take a
  // third of the time of a small collective.
  const std::string& description() const override;
  // Also between what Given says and the completion.
  int source_rank() const override;

 private:
  // It is in a stream, or over.
  void Placed();

  Collective collective_;
  const Api& api_;
  const int device_;
  // Whether the host waits, too: it asked for that, or it is a barrier.
  const bool blocks_;
  const std::shared_ptr<HostWaiters> waiters_;

  mutable Mutex mutex_;
  mutable std::string description_ MUSTER_GUARDED_BY(mutex_);
  Event end_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  // Which one it is in, where that is known: whose current one that is need not
  // wait for it.
  std::optional<Stream> stream_ MUSTER_GUARDED_BY(mutex_);
  bool over_ MUSTER_GUARDED_BY(mutex_) = false;
  std::atomic<bool> is_placed_{false};
  std::atomic<int> given_source_{-1};
};

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_DEVICE_WORK_H_
