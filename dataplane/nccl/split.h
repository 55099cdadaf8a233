#ifndef MUSTER_DATAPLANE_NCCL_SPLIT_H_
#define MUSTER_DATAPLANE_NCCL_SPLIT_H_

#include <functional>
#include <memory>

#include "dataplane/nccl/api.h"
#include "dataplane/nccl/comm_task.h"
#include "dataplane/nccl/platform.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::nccl {

// This rank of a new group, which needs a communicator.
struct SplitRank {
  const BackendOptions& group;
  // The device of this rank.
  int device = 0;
  Instant deadline = Instant::max();
  // Polled: returns an error once the communicator is no longer needed.
  const std::function<Status()>& over;
};

// NcclParentHandle makes a communicator for a new group from its parent group's
// communicator. The parent's backend makes the handle, the new one uses it. It
// owns the communicator's strings, so it must outlive the communicator.
// Thread-safe.
class NcclParentHandle : public ParentHandle {
 public:
  // Returns the communicator, which may be in progress; the caller owns it.
  // Null, on all ranks, if it cannot be made from the parent's: the ranks then
  // make one from scratch. Called once.
  // Errors: kDeadlineExceeded, kInternal with NCCL's text, and the errors of
  // `over` and the store.
  virtual StatusOr<Comm> Make(const SplitRank& asker) = 0;
};

// Makes the communicator with ncclCommSplit, which the parent group calls in
// the order of its collectives. If the parent group has ended, Make returns
// null on all ranks.
class Split : public NcclParentHandle, public CommTask {
 public:
  // `key`: this rank's number in the parent group.
  Split(const Platform& platform, const SplitOptions& options, int key)
      : nccl_(platform.nccl),
        version_(platform.nccl_version),
        options_(options),
        key_(key) {}
  // Aborts the communicator if Make has not returned it.
  ~Split() override;

  // Calls ncclCommSplit on the parent's communicator.
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
  // Set by End, cleared by Make.
  Comm comm_ MUSTER_GUARDED_BY(mutex_) = nullptr;
};

// Makes the communicator with ncclCommShrink from a communicator that the
// parent group has given up. That needs a parent communicator with nothing in
// progress on every rank; the ranks agree on this in the new group's store.
class Shrink : public NcclParentHandle {
 public:
  // Takes ownership of `parent`, which may be null and is on `device`.
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
