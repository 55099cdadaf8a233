#ifndef MUSTER_DATAPLANE_NCCL_SPLIT_H_
#define MUSTER_DATAPLANE_NCCL_SPLIT_H_

#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/backend.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/comm_task.h"
#include "dataplane/nccl/platform.h"

namespace muster::dataplane::nccl {

// A rank of a new group, which needs a communicator.
struct SplitRank {
  const BackendOptions& group;
  // Its device.
  int device = 0;
  Instant deadline = Instant::max();
  // Says why nobody needs it any more; OK while it is needed. Asked now and
  // then.
  const std::function<Status()>& over;
};

// NcclParentHandle makes a communicator for a new group from another group's,
// and passes it from that group's backend to the new one. It keeps the
// communicator's strings, so it outlives the communicator. Thread-safe.
class NcclParentHandle : public ParentHandle {
 public:
  // The communicator, which may be in progress and is the caller's from then
  // on; null if none can come of the other group's: then the ranks are to meet
  // anew, as all of them find. Called once.
  // Errors: kDeadlineExceeded, kInternal with NCCL's own words, what `over` and
  // the store say.
  virtual StatusOr<Comm> Make(const SplitRank& asker) = 0;
};

// Makes the communicator by ncclCommSplit, which the parent group calls in the
// order of its collectives. If the parent group has ended, none can be made,
// and all ranks are told.
class Split : public NcclParentHandle, public CommTask {
 public:
  // `key`: this rank in the other group.
  Split(const Platform& platform, const SplitOptions& options, int key)
      : nccl_(platform.nccl),
        version_(platform.nccl_version),
        options_(options),
        key_(key) {}
  // Aborts a communicator that nobody has taken.
  ~Split() override;

  // Of the other group: ncclCommSplit of its communicator.
  Result Begin(Comm parent) override;
  void End(const Status& why) override;

  StatusOr<Comm> Make(const SplitRank& asker) override;

 private:
  const Api nccl_;
  const int version_;
  const SplitOptions options_;
  const int key_;

  // NCCL writes to it between Begin and End.
  Comm made_ = nullptr;

  Mutex mutex_;
  CondVar changed_;
  bool ended_ MUSTER_GUARDED_BY(mutex_) = false;
  // After the end, until it is taken.
  Comm comm_ MUSTER_GUARDED_BY(mutex_) = nullptr;
};

// Makes the communicator by ncclCommShrink of a communicator that the parent
// group has given up. That is possible only if each rank has one with nothing
// in progress; the ranks agree on this in the new group's store.
class Shrink : public NcclParentHandle {
 public:
  // `parent`, which may be null, is of this device, and its own from then on.
  Shrink(const Platform& platform, const SplitOptions& options, Comm parent,
         int device)
      : nccl_(platform.nccl),
        version_(platform.nccl_version),
        options_(options),
        device_(device),
        parent_(parent) {}
  ~Shrink() override { Release(); }

  StatusOr<Comm> Make(const SplitRank& asker) override;

 private:
  StatusOr<bool> AllHaveOne(const SplitRank& asker) const;
  StatusOr<Comm> Call(const SplitRank& asker);
  void Release();

  const Api nccl_;
  const int version_;
  const SplitOptions options_;
  const int device_;
  Comm parent_;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_SPLIT_H_
