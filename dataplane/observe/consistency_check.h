// The check of debug level DETAIL that all ranks run the same collectives.

#ifndef MUSTER_DATAPLANE_OBSERVE_CONSISTENCY_CHECK_H_
#define MUSTER_DATAPLANE_OBSERVE_CONSISTENCY_CHECK_H_

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/cuda/stream.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/bootstrap_store.h"

namespace muster::dataplane {

struct ConsistencyCheckOptions {
  std::string group_name = {};
  int rank = 0;
  int world_size = 1;
  // The store in which ranks compare. Only this group uses its keys.
  std::shared_ptr<BootstrapStore> store = {};
};

// ConsistencyCheck starts a collective of `inner` when every rank has reached
// it and all arguments match (Fingerprint). If they do not match, it fails on
// every rank with one error that shows what most ranks run and which ranks
// differ. If some ranks do not come by its deadline, the error names them. The
// check itself runs no collective of `inner`, and no rank waits for a failed
// one.
//
// A rank that refuses its arguments announces that; the others fail with that
// error when all ranks have come.
//
// Sends and receives are not compared; they pass through. But a batch of them
// on CUDA tensors is ordered with the collectives, as in an NCCL communicator,
// and starts as a batch in that order.
//
// One thread waits for the other ranks. All ranks of the group must have the
// check.
class ConsistencyCheck : public BackendDecorator {
 public:
  ConsistencyCheck(std::unique_ptr<Backend> inner,
                   ConsistencyCheckOptions options);
  ~ConsistencyCheck() override;

  std::shared_ptr<Work> Start(const Collective& collective) override;
  void Refused(const Collective& collective, const Status& why) override;
  // A batch of collectives is not passed on as a batch: each is checked by
  // itself.
  void BeginTogether() override;
  void EndTogether() override;
  // Always null, so the new groups connect from scratch: collectives that were
  // started may not have reached `inner` yet.
  std::shared_ptr<ParentHandle> Split(const SplitOptions&) override {
    return nullptr;
  }
  // Waits until everything that was started has reached `inner`.
  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options) override;
  void Abort(Status cause) override;

 private:
  struct Job {
    Collective collective;
    std::shared_ptr<ProxyWork> work;
    // The caller's current stream on the collective's device.
    cuda::Stream stream = nullptr;
  };
  // One collective, or a batch of sends and receives.
  using Jobs = std::vector<Job>;

  static Job MakeJob(const Collective& collective);
  void Serve();
  void CheckAndStart(const Jobs& jobs);
  void StartInner(const Job& job);
  // Waits for the other ranks and compares.
  Status Check(const Collective& collective);
  Status Missing(const Collective& collective);
  std::string MakeKey(uint64_t sequence, int rank) const;
  Status aborted() const;
  // Whether everything that was started has reached `inner`.
  bool IsIdle() const;

  // Constant after construction.
  const ConsistencyCheckOptions options_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Jobs> jobs_ MUSTER_GUARDED_BY(mutex_);
  // Set between BeginTogether and EndTogether; `gathered_` is the batch so far.
  bool gathers_ MUSTER_GUARDED_BY(mutex_) = false;
  Jobs gathered_ MUSTER_GUARDED_BY(mutex_);
  // The works that the thread is checking; empty once they go to `inner`.
  std::vector<std::shared_ptr<ProxyWork>> current_ MUSTER_GUARDED_BY(mutex_);
  // Whether the thread is checking or starting one.
  bool runs_ MUSTER_GUARDED_BY(mutex_) = false;
  Status aborted_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;

  // Held while something starts in `inner`, so that nothing starts in the
  // middle of a batch.
  Mutex start_mutex_;

  std::thread thread_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_CONSISTENCY_CHECK_H_
