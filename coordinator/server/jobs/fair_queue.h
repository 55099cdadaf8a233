// Shares the processors fairly among jobs under load.

#ifndef MUSTER_COORDINATOR_SERVER_JOBS_FAIR_QUEUE_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_FAIR_QUEUE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "coordinator/core/instant.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

class Job;

// FairQueue runs the long work of jobs in slices. Each slice charges its job
// the processor time that it took, and the next slice belongs to the job that
// has been charged least, however many slices each job has waiting. Within a
// job the owners of slices (its sessions, the calls of one member) are served
// round robin. This work does not run on gRPC's own threads, which read for all
// jobs. Thread-safe.
class FairQueue {
 public:
  // Work up to these limits is done at once, because that is faster than
  // posting it: a client's message, answers that wait to be written, and the
  // calls of other clients that a step answers.
  static constexpr size_t kItemsWithoutTask = 256;
  static constexpr size_t kBytesWithoutTurn = 16 << 10;
  static constexpr size_t kOthersWithoutTurn = 8;
  // While other jobs are active, one job may have this many small messages in a
  // window done at once.
  static constexpr int kMessagesAtOnceMax = 10;
  static constexpr core::Duration kAtOnceWindow = std::chrono::milliseconds(10);
  // Other jobs are active if one had a message within this time.
  static constexpr core::Duration kCompanyTime = std::chrono::seconds(1);

  // Returns the processor time that the calling thread has used.
  using Clock = std::function<core::Duration()>;
  static core::Duration ThreadTime();

  // How often a job has recently done something small at once. Thread-safe.
  class Recent {
   private:
    friend class FairQueue;
    std::atomic<int64_t> window_ = 0;
    std::atomic<int> count_ = 0;
  };

  explicit FairQueue(int threads, Clock clock = &ThreadTime);
  // Calls Stop.
  ~FairQueue();
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // Runs `task` on a thread of the queue. The tasks of one owner run one after
  // another in the order in which they were posted, and those of one job never
  // use more than half of the threads. A task should be short, about a
  // millisecond, and post the rest of its work as another task. `job` is only a
  // key: work for no job has a share under an address of its own, and null
  // stands for messages that name no existing job. After Stop the task runs at
  // once.
  void Post(const Job* job, const void* owner, std::function<void()> task)
      MUSTER_LOCKS_EXCLUDED(mu_);

  // Whether the job may do the work of a small message at once, on the thread
  // that has read it and reads for other jobs, too. False if other jobs are
  // active and this job has had more than its share of those threads; it must
  // then post a task.
  bool AtOnce(const Job* job, Recent& recent, core::Instant now);

  // Runs the waiting tasks and those that they post, and ends the threads.
  void Stop() MUSTER_LOCKS_EXCLUDED(mu_);

 private:
  using Tasks = std::deque<std::function<void()>>;

  // One job's waiting tasks and its cost.
  struct Share {
    const Job* job = nullptr;
    core::Duration cost{};
    int running = 0;
    // The tasks of each owner with waiting or running ones. `rotation` holds
    // the owners without a running task, the next one first.
    absl::flat_hash_map<const void*, Tasks> tasks;
    std::deque<const void*> rotation;
  };
  // Shares by cost.
  using Order = absl::btree_set<std::pair<core::Duration, const Job*>>;

  struct Task {
    const Job* job = nullptr;
    const void* owner = nullptr;
    std::function<void()> run;
  };

  void Run();
  // Waits for a task; none: the queue has ended.
  std::optional<Task> Take() MUSTER_LOCKS_EXCLUDED(mu_);
  // Charges the task's job after the task has ended.
  void Charge(const Task& task, core::Duration cost) MUSTER_LOCKS_EXCLUDED(mu_);
  void Insert(const Share& share) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(const Share& share) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock clock_;
  const int threads_per_job_;
  // The job of the last message, and the time of the last message whose job
  // differed from that of the message before.
  std::atomic<const Job*> last_ = nullptr;
  std::atomic<core::Duration::rep> changed_at_ = 0;

  Mutex mu_;
  CondVar wakes_;
  absl::flat_hash_map<const Job*, Share> shares_ MUSTER_GUARDED_BY(mu_);
  // Shares that may run one now, and shares without work that have cost
  // more than the others, which is remembered while the others go on.
  Order ready_ MUSTER_GUARDED_BY(mu_);
  Order idle_ MUSTER_GUARDED_BY(mu_);
  // The cost of the job that ran the last task. A new job begins there.
  core::Duration level_ MUSTER_GUARDED_BY(mu_){};
  int running_ MUSTER_GUARDED_BY(mu_) = 0;
  bool stopping_ MUSTER_GUARDED_BY(mu_) = false;
  bool stopped_ MUSTER_GUARDED_BY(mu_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_FAIR_QUEUE_H_
