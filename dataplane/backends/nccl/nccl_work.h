// What a collective on nccl is to those who wait for it.

#ifndef MUSTER_DATAPLANE_BACKENDS_NCCL_NCCL_WORK_H_
#define MUSTER_DATAPLANE_BACKENDS_NCCL_NCCL_WORK_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "dataplane/cuda/api.h"
#include "dataplane/mutex.h"
#include "dataplane/work.h"

namespace muster::dataplane::nccl {

// One started collective. It is given to a stream, at once or when its
// communicator is there, and then over: complete, or about to be.
class NcclWork : public PromisedWork {
 public:
  // `watched` counts those that wait on the host.
  NcclWork(std::string description, const cuda::Api& cuda, int device,
           bool blocks, std::shared_ptr<std::atomic<int>> watched)
      : PromisedWork(std::move(description)),
        cuda_(cuda),
        device_(device),
        blocks_(blocks),
        watched_(std::move(watched)) {}

  // It is in a stream, in which `end` comes after it.
  void Given(cuda::Event end);
  // `end` is somebody else's from here on.
  void Over();

  using PromisedWork::Wait;
  [[nodiscard]] absl::Status Wait(Instant deadline) override;
  [[nodiscard]] absl::Status Synchronize() override;

 private:
  const cuda::Api& cuda_;
  const int device_;
  // Whether the host waits, too: it asked for that, or it is a barrier.
  const bool blocks_;
  const std::shared_ptr<std::atomic<int>> watched_;

  Mutex mutex_;
  CondVar changed_;
  cuda::Event end_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_BACKENDS_NCCL_NCCL_WORK_H_
