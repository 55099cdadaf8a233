// The Work of a collective on CUDA tensors.

#ifndef MUSTER_DATAPLANE_CUDA_DEVICE_WORK_H_
#define MUSTER_DATAPLANE_CUDA_DEVICE_WORK_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dataplane/cuda/api.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane::cuda {

// Counts the threads that wait on the host, so that the completing thread can
// look for completions more often.
struct HostWaiters {
  std::atomic<int> count{0};
  // Notified without a lock when the first one comes, so a notification may be
  // missed.
  CondVar came;
};

// One started collective. First it is not placed; then it, or its last part, is
// enqueued in a stream; finally it is over: complete, or about to be.
class DeviceWork : public PromisedWork {
 public:
  // Copies `collective`. `api` must live until Over. `waiters` may be null.
  DeviceWork(const Collective& collective, const Api& api, int device,
             bool blocks, std::shared_ptr<HostWaiters> waiters)
      : collective_(collective),
        api_(api),
        device_(device),
        blocks_(blocks),
        waiters_(std::move(waiters)) {}

  const Collective& collective() const { return collective_; }

  // The collective is enqueued; `end` comes after it in the stream. For a
  // receive, `source_rank` is the sender if it is known by then.
  void Given(Event end, int source_rank = -1);
  // As Given, for a known stream.
  void GivenTo(Stream stream, Event end);
  // Must be called before `end` is reused or destroyed.
  void Over();

  using PromisedWork::Wait;
  [[nodiscard]] Status Wait(Instant deadline) override;
  [[nodiscard]] Status Synchronize() override;
  // Made at the first call, since few callers need it and making it takes a
  // third of the time of a small collective.
  const std::string& description() const override;
  // Set by Given already.
  int source_rank() const override;

 private:
  // Marks it as enqueued or over.
  void Placed();

  Collective collective_;
  const Api& api_;
  const int device_;
  // Synchronize waits on the host: blocking_wait is set, or it is a barrier.
  const bool blocks_;
  const std::shared_ptr<HostWaiters> waiters_;

  mutable Mutex mutex_;
  mutable std::string description_ MUSTER_GUARDED_BY(mutex_);
  Event end_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  // Its stream, if known. If that is the caller's current stream, Synchronize
  // need not wait for it.
  std::optional<Stream> stream_ MUSTER_GUARDED_BY(mutex_);
  bool over_ MUSTER_GUARDED_BY(mutex_) = false;
  std::atomic<bool> is_placed_{false};
  std::atomic<int> given_source_{-1};
};

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_DEVICE_WORK_H_
