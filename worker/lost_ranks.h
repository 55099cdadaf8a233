#ifndef MUSTER_WORKER_LOST_RANKS_H_
#define MUSTER_WORKER_LOST_RANKS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "dataplane/mutex.h"
#include "worker/rank_environment.h"

namespace muster {
class Session;
struct MemberEvent;
}  // namespace muster

namespace muster::worker {

// LostRanks hears from the coordinator which processes of this host it has
// taken for lost: those that hang. It is a member of the job without a rank.
// While the coordinator cannot be reached it hears of nobody.
//
// Thread-safe. A thread of its own, and its session's.
class LostRanks {
 public:
  struct Lost {
    pid_t pid = 0;
    std::string cause;
  };

  // `wake` is called, on another thread, when Take has something.
  LostRanks(const CoordinatorAddress& coordinator, std::function<void()> wake);
  ~LostRanks();

  LostRanks(const LostRanks&) = delete;
  LostRanks& operator=(const LostRanks&) = delete;

  // Those since the last call.
  std::vector<Lost> Take() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Listen();
  std::shared_ptr<Session> Connect();
  void OnEvent(const MemberEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);

  const CoordinatorAddress coordinator_;
  const std::function<void()> wake_;
  std::stop_source stop_connecting_;  // by the destructor

  dataplane::Mutex mutex_;
  dataplane::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The session has ended by itself.
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Lost> lost_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LOST_RANKS_H_
