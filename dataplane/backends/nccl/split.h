#ifndef MUSTER_DATAPLANE_BACKENDS_NCCL_SPLIT_H_
#define MUSTER_DATAPLANE_BACKENDS_NCCL_SPLIT_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backend.h"
#include "dataplane/backends/nccl/api.h"
#include "dataplane/backends/nccl/platform.h"
#include "dataplane/instant.h"
#include "dataplane/mutex.h"

namespace muster::dataplane::nccl {

// Split is a communicator that comes of another group's, and the way from that
// group's backend to its own. It keeps the communicator's texts, so it outlives
// it. Thread-safe.
class Split : public Descent {
 public:
  // `key`: this rank in the other group.
  Split(const Platform& platform, const SplitOptions& options, int key)
      : nccl_(platform.nccl),
        version_(platform.nccl_version),
        options_(options),
        key_(key) {}
  // Aborts a communicator that nobody has taken.
  ~Split() override;

  // Of the other group: calls ncclCommSplit of its communicator. NCCL may be
  // in progress with it afterwards; then nothing else may be done with that
  // communicator until it is not.
  Result Begin(Comm parent);
  // NCCL is no longer in progress: it is done, or `why` there is nothing to
  // come. At most once, also without Begin.
  void End(const absl::Status& why);

  // Of the new group: the communicator, which may be in progress and is the
  // caller's from then on; null if the other group has ended: then this one is
  // to begin anew, as it is on all ranks, who are told of that end.
  // Errors: kDeadlineExceeded, what `over` says, which is asked now and then.
  absl::StatusOr<Comm> Await(Instant deadline,
                             const std::function<absl::Status()>& over);

 private:
  const Api nccl_;
  const int version_;
  const SplitOptions options_;
  const int key_;

  // NCCL writes to it between Begin and End.
  Comm made_ = nullptr;

  Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // After the end, until it is taken.
  Comm comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_BACKENDS_NCCL_SPLIT_H_
