// The check of debug level DETAIL that all ranks run the same collectives.

#ifndef MUSTER_DATAPLANE_OBSERVE_CONSISTENCY_CHECK_H_
#define MUSTER_DATAPLANE_OBSERVE_CONSISTENCY_CHECK_H_

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/backend.h"
#include "dataplane/bootstrap_store.h"
#include "dataplane/cuda/stream.h"

namespace muster::dataplane {

struct ConsistencyCheckOptions {
  std::string group_name = {};
  int rank = 0;
  int world_size = 1;
  // Where the ranks compare; keys of this group alone.
  std::shared_ptr<BootstrapStore> store = {};
};

// ConsistencyCheck starts a collective of `inner` when every rank has reached
// it and all pass matching arguments (Fingerprint). If they do not match, it
// fails on every rank with one error that shows what most ranks run and which
// ranks differ. If some ranks do not come by its deadline, the error names
// them. The check uses no collective of `inner`, and no rank waits for a rank
// that has failed.
//
// A rank whose arguments are refused announces that, and the others fail with
// that error when all have come.
//
// Sends and receives are not compared; they pass through. But those of CUDA
// tensors that begin together are ordered among the collectives, as in a
// communicator of NCCL, and begin together there.
//
// A thread of its own waits for the other ranks. All ranks of the group must
// have the check.
class ConsistencyCheck : public BackendDecorator {
 public:
  ConsistencyCheck(std::unique_ptr<Backend> inner,
                   ConsistencyCheckOptions options);
  ~ConsistencyCheck() override;

  std::shared_ptr<Work> Start(const Collective& collective) override;
  void Refused(const Collective& collective, const Status& why) override;
  // Collectives are checked one by one before they begin.
  void BeginTogether() override;
  void EndTogether() override;
  // Groups are made anew: what was started may not have come to `inner` yet.
  std::shared_ptr<ParentHandle> Split(const SplitOptions&) override {
    return nullptr;
  }
  // When all that was started has come to `inner`.
  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options) override;
  void Abort(Status cause) override;

 private:
  struct Job {
    Collective collective;
    std::shared_ptr<ProxyWork> work;
    // The caller's, of the collective's device.
    cuda::Stream stream = nullptr;
  };
  // A collective, or sends and receives that begin together.
  using Jobs = std::vector<Job>;

  static Job JobOf(const Collective& collective);
  void Serve();
  void CheckAndStart(const Jobs& jobs);
  void StartInner(const Job& job);
  // Waits for the other ranks and compares.
  Status Check(const Collective& collective);
  Status Missing(const Collective& collective);
  std::string KeyOf(uint64_t sequence, int rank) const;
  Status aborted() const;
  // Whether nothing is on its way to the inner backend.
  bool IsIdle() const;

  // Constant after construction.
  const ConsistencyCheckOptions options_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Jobs> jobs_ MUSTER_GUARDED_BY(mutex_);
  // Between BeginTogether and EndTogether, and what has come by then.
  bool gathers_ MUSTER_GUARDED_BY(mutex_) = false;
  Jobs gathered_ MUSTER_GUARDED_BY(mutex_);
  // That the thread is at, as far as they have not come to `inner`.
  std::vector<std::shared_ptr<ProxyWork>> current_ MUSTER_GUARDED_BY(mutex_);
  // Whether the thread is at one.
  bool runs_ MUSTER_GUARDED_BY(mutex_) = false;
  Status aborted_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;

  // Held while something begins in `inner`: nothing comes between what begins
  // together.
  Mutex start_mutex_;

  std::thread thread_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_CONSISTENCY_CHECK_H_
