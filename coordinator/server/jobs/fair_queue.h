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
#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "coordinator/core/instant.h"

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
  // What is no more than this is quicker done than handed over: a message of a
  // client, answers that wait to be written, and the calls of others that a
  // step answers.
  static constexpr size_t kItemsWithoutTurn = 256;
  static constexpr size_t kBytesWithoutTurn = 16 << 10;
  static constexpr size_t kOthersWithoutTurn = 8;
  // And of small messages of one job while there are other jobs: so many in a
  // window.
  static constexpr int kMessagesAtOnceMax = 10;
  static constexpr core::Duration kAtOnceWindow = std::chrono::milliseconds(10);
  // Other jobs are there when one had a message not longer ago than this.
  static constexpr core::Duration kCompanyTime = std::chrono::seconds(1);

  // Returns the processor time that the calling thread has used.
  using Clock = std::function<core::Duration()>;
  static core::Duration ThreadTime();

  // How often a job lately did something small at once. Thread-safe.
  class Recent {
   private:
    friend class FairQueue;
    std::atomic<int64_t> window_ = 0;
    std::atomic<int> count_ = 0;
  };

  explicit FairQueue(int threads, Clock clock = &ThreadTime);
  // As Stop.
  ~FairQueue();
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // Runs `turn` on a thread of the queue. The turns of one owner run one after
  // another in the order in which they were posted, and those of one job never
  // hold more than half of the threads. A turn should be short, about a
  // millisecond, and post what is left as another one. `job` is not looked
  // into: whoever is none has a share by an address of its own. Null: of a
  // message that names no job that is here. After Stop the turn runs at once.
  void Post(const Job* job, const void* owner, std::function<void()> turn)
      MUSTER_LOCKS_EXCLUDED(mu_);

  // Whether the job, which has a small message, may do what it says at once, on
  // the thread that has read it and reads for others, too. Not when other jobs
  // have something to do as well and it has had more than its share of those
  // threads: it takes a turn then.
  bool AtOnce(const Job* job, Recent& recent, core::Instant now);

  // Runs what waits, and what that posts, and ends the threads.
  void Stop() MUSTER_LOCKS_EXCLUDED(mu_);

 private:
  using Turns = std::deque<std::function<void()>>;

  // Of one job: what it has waiting, and what it has cost.
  struct Share {
    const Job* job = nullptr;
    core::Duration cost{};
    int running = 0;
    // Of each owner that has any waiting or under way; `rotation` holds those
    // of which none is under way, the next first.
    absl::flat_hash_map<const void*, Turns> turns;
    std::deque<const void*> rotation;
  };
  // Shares by what they have cost.
  using Order = absl::btree_set<std::pair<core::Duration, const Job*>>;

  struct Turn {
    const Job* job = nullptr;
    const void* owner = nullptr;
    std::function<void()> run;
  };

  void Run();
  // Waits for one; none: the queue has ended.
  std::optional<Turn> Take() MUSTER_LOCKS_EXCLUDED(mu_);
  // What follows from the end of a turn that has cost so much.
  void Charge(const Turn& turn, core::Duration cost) MUSTER_LOCKS_EXCLUDED(mu_);
  void Place(const Share& share) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(const Share& share) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock clock_;
  const int threads_per_job_;
  // Whose the last message was, and when there has last been one of another
  // job than the one before.
  std::atomic<const Job*> last_ = nullptr;
  std::atomic<core::Duration::rep> changed_at_ = 0;

  Mutex mu_;
  CondVar wakes_;
  absl::flat_hash_map<const Job*, Share> shares_ MUSTER_GUARDED_BY(mu_);
  // Those that may have a turn now, and those that have nothing to do but have
  // cost more than others, which is not forgotten while those go on.
  Order ready_ MUSTER_GUARDED_BY(mu_);
  Order idle_ MUSTER_GUARDED_BY(mu_);
  // What the job had cost that had the last turn: who comes new begins there.
  core::Duration level_ MUSTER_GUARDED_BY(mu_){};
  int running_ MUSTER_GUARDED_BY(mu_) = 0;
  bool stopping_ MUSTER_GUARDED_BY(mu_) = false;
  bool stopped_ MUSTER_GUARDED_BY(mu_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_FAIR_QUEUE_H_
