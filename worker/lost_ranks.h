#ifndef MUSTER_WORKER_LOST_RANKS_H_
#define MUSTER_WORKER_LOST_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/internal/host_members.h"
#include "dataplane/mutex.h"
#include "worker/hang_judge.h"
#include "worker/rank_environment.h"

namespace muster::worker {

// LostRanks asks the coordinator, ten times in a lease, which processes of this
// host it has taken for lost: those that hang (HangJudge). It asks, and is no
// member who is told, because that one might be lost with them.
//
// Thread-safe. A thread of its own.
class LostRanks {
 public:
  // `wake` is called, on another thread, when Take has something.
  LostRanks(const CoordinatorAddress& coordinator, std::function<void()> wake);
  // Waits for an answer that is on its way, for kAnswerTime at most.
  ~LostRanks();

  LostRanks(const LostRanks&) = delete;
  LostRanks& operator=(const LostRanks&) = delete;

  // Those since the last call.
  std::vector<HangJudge::Lost> Take() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();
  // Returns the pause until the next time.
  std::chrono::milliseconds Ask() ABSL_LOCKS_EXCLUDED(mutex_);

  const CoordinatorAddress coordinator_;
  const std::function<void()> wake_;

  // Of the thread. Null: not connected.
  std::unique_ptr<internal::HostMembersReader> reader_;
  HangJudge judge_;

  dataplane::Mutex mutex_;
  dataplane::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<HangJudge::Lost> lost_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LOST_RANKS_H_
