#ifndef MUSTER_COORDINATOR_SERVER_JOBS_JOB_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_JOB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/call.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/core/total_memory.h"
#include "coordinator/server/jobs/commit_queue.h"
#include "coordinator/server/jobs/fair_queue.h"
#include "coordinator/server/jobs/operation_rate.h"
#include "coordinator/server/jobs/sink.h"
#include "coordinator/server/method.h"
#include "coordinator/server/ops/metrics.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// The state that a step of a job uses while it holds the job's lock.
struct JobContext {
  core::Coordinator& core;
  const core::Limits& limits;
  const core::Instant now;
  core::Outbox& out;
};

// Job is the state of one job, its lock, and the routing of answers to the
// sinks that wait for them. The results of a step are delivered after the lock
// is released and, if the job is durable, after this step and all earlier ones
// are committed. So no caller learns, from a write or from a read, of a state
// that a restart could undo. A step that answers or notifies many callers does
// so in slices, and the results of later steps follow it. Thread-safe.
class Job : public std::enable_shared_from_this<Job> {
 public:
  struct Options {
    core::CoordinatorOptions core;
    core::CoordinatorEpoch epoch;
    core::JobEpoch job_epoch;
    // The memory of all jobs; outlives the job. Null: no limit.
    core::TotalMemory* memory = nullptr;
    bool log_notices = true;
    Metrics* metrics = nullptr;  // outlives the job
    // Commits steps. Null: steps are not committed.
    std::shared_ptr<CommitQueue> commits;
    // Runs deliveries to many sinks; outlives the job. Null: the thread that
    // makes the step delivers.
    FairQueue* fair_queue = nullptr;
    // The memory of all jobs' steps whose answers wait for the storage;
    // outlives the job. Null: it is not counted.
    std::atomic<int64_t>* untold_bytes = nullptr;
    // Called, without the lock, when the job needs an earlier Tick than before.
    std::function<void(const std::shared_ptr<Job>&, core::Instant)> arm;
  };

  Job(std::string name, Options options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& name() const { return name_; }

  // Identifies this life of the job. Another life has none of its state.
  core::JobEpoch epoch() const { return options_.job_epoch; }

  // Restores the stored records. Call it before any other use.
  void Restore(std::vector<core::Record> records);

  // Calls `done` when all steps so far are committed and delivered: at once if
  // there are none to wait for. Runs on this thread or a queue's.
  void WhenTold(std::function<void()> done);

  // Whether so many steps, or so large ones, wait for the storage or for their
  // delivery that a call has to wait for them (WhenTold).
  bool Behind() const;

  // See Storage::health.
  Status health() const {
    return options_.commits == nullptr ? OkStatus()
                                       : options_.commits->health();
  }

  // Marks the time in which a turn's step may take long.
  class LongStep {
   public:
    explicit LongStep(Job& job) : job_(job) { ++job_.long_steps_; }
    ~LongStep() { --job_.long_steps_; }
    LongStep(const LongStep&) = delete;
    LongStep& operator=(const LongStep&) = delete;

   private:
    Job& job_;
  };

  // Whether a step may have to wait for a long one. A thread that others need
  // must then post a turn instead.
  bool busy() const { return long_steps_.load() > 0; }

  // See FairQueue.
  bool AtOnce(core::Instant now) {
    return options_.fair_queue == nullptr ||
           options_.fair_queue->AtOnce(this, recent_, now);
  }

  // Whether no other process can have the job. If it is true after the job's
  // state was read, no other one had it then.
  bool owned() const {
    return options_.commits == nullptr || options_.commits->owned();
  }

  // Erases the job's records in the storage. The job is not used after it.
  void Erase();

  // From now on every call is answered with `status`, which is not OK, and
  // nothing changes the job's state. Earlier steps are still committed and
  // answered, and calls that wait go on waiting.
  void Retire(const Status& status);

  // The result of one call of a batch.
  enum class Applied {
    kCalled,    // answered now or parked
    kNoAnswer,  // done; it has no answer
    kStop,      // not done; the batch ends before it
  };

  // Applies calls 0 to count - 1 of `sink` under one lock. `apply` makes call i
  // with the given waiter; `name` names its answer. If a call has to wait while
  // another call of the sink waits under the same tag, it is answered
  // CANCELLED; if it is a retry that took over that call, that call is.
  // Delivers and flushes the answers, of this sink and of others. Returns the
  // number of calls that were applied.
  size_t Run(const std::shared_ptr<Sink>& sink, size_t count,
             absl::FunctionRef<Applied(size_t i, core::WaiterId waiter,
                                       JobContext& context)>
                 apply,
             absl::FunctionRef<CallName(size_t i)> name);

  // Only for use in `apply` of Run: gives up the call with that tag, which is
  // answered CANCELLED. No effect if no such call waits.
  static void Cancel(const Sink& sink, uint64_t tag, JobContext& context);

  // Registers a member, whose events go to `sink` from now on. Closes the sink
  // that had them before.
  StatusOr<core::RegisterReply> Attach(const std::shared_ptr<Sink>& sink,
                                       const core::Call& call,
                                       core::Registration registration);

  // The sink's client has gone. Withdraws its parked calls without an answer.
  // If the sink has a member's events, the member has lost its connection, as
  // `disconnection` says. Must be the sink's last use of the job.
  void Detach(Sink& sink,
              core::Disconnection disconnection = core::Disconnection::kClosed);

  // Gives up all calls of the sink; each is answered CANCELLED.
  void CancelAll(const std::shared_ptr<Sink>& sink);

  // The sinks of all parked calls.
  std::vector<std::shared_ptr<Sink>> ParkedSinks();

  // Processes the leases and deadlines that are due.
  void Tick();

  // See core::Coordinator.
  core::JobSnapshot Snapshot();
  core::JobSnapshot Snapshot(absl::string_view host, core::Rank first_rank,
                             int32_t rank_count);
  core::JobCounts Counts();

  // The number of calls since the job's creation, and their recent rate as of
  // the last SampleRate.
  struct Operations {
    int64_t total = 0;
    double per_second = 0;
  };
  Operations operations();
  void SampleRate(core::Instant now);

  // Whether a new job would behave the same.
  bool Blank();

  // Whether there was no member, no waiting call and no new call since `since`.
  bool IdleSince(core::Instant since);

 private:
  struct Waiting {
    std::shared_ptr<Sink> sink;
    CallName name;
    core::Instant started;
  };
  struct Delivery {
    std::shared_ptr<Sink> sink;
    Answer answer;
  };
  struct Broadcast {
    std::shared_ptr<Sink> sink;
    SharedEvent event;
  };
  // The results of a step, to be delivered without the lock.
  struct StepResult {
    std::vector<Answer> own;  // of the sink that made the step
    std::vector<Delivery> deliveries;
    std::vector<Broadcast> broadcasts;
    // Events that were told for the first time, and the number of their
    // members.
    std::vector<std::pair<core::EventKind, int64_t>> events;
    std::vector<core::Notice> notices;
    bool rearm = false;
    core::Instant deadline;
    // The number of broadcasts that are published, of deliveries that are
    // delivered, and of both together that are flushed.
    size_t published = 0;
    size_t delivered = 0;
    size_t flushed = 0;

    bool empty() const {
      return own.empty() && deliveries.empty() && broadcasts.empty() &&
             events.empty() && notices.empty();
    }
  };
  // Results to deliver, or a function to call, when a step is durable.
  struct Told {
    std::shared_ptr<Sink> sink;
    StepResult result;
    std::function<void()> done;
    int64_t bytes = 0;  // of `result` and the records to store
  };
  // The thread that continues a step when the lock is released.
  enum class Next {
    kCaller,  // calls Finish
    kElsewhere,
    kTask,  // the caller posts the first turn
  };
  // The sink of a member's events.
  struct Online {
    std::shared_ptr<Sink> sink;
    core::Incarnation incarnation;
  };

  core::Instant Now() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Collects what the step has for others than `sink`, which makes the step and
  // may be null.
  void Collect(core::Outbox& out, const Sink* sink, StepResult& result)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CollectParked(core::Reply& reply, const Sink* sink, StepResult& result)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Park(core::WaiterId waiter, Waiting&& waiting, JobContext& context)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Next Conclude(const std::shared_ptr<Sink>& sink, StepResult& result)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Commit(std::vector<core::Record> records, Told told)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Committed(Told& told, const Status& status) MUSTER_LOCKS_EXCLUDED(mu_);
  void CountTold(int64_t bytes) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static int64_t CountBytes(const StepResult& result);
  bool NeedsTasks(const StepResult& result) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Next AwaitTask(Told told) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishOrPost(Next next, const std::shared_ptr<Sink>& sink,
                    StepResult& result) MUSTER_LOCKS_EXCLUDED(mu_);
  void PostTask();
  void TellInTurn() MUSTER_LOCKS_EXCLUDED(mu_);
  static void CloseAll(const std::shared_ptr<Sink>& sink,
                       const StepResult& result, const Status& status);
  bool Finish(const std::shared_ptr<Sink>& sink, StepResult& result,
              size_t count) MUSTER_LOCKS_EXCLUDED(mu_);
  void Log(const core::Notice& notice) const;

  const std::string name_;
  const Options options_;

  Mutex mu_;
  core::MemoryShare memory_ MUSTER_GUARDED_BY(mu_);
  core::Coordinator core_ MUSTER_GUARDED_BY(mu_);
  // steady_clock does not run backwards, but two threads may read it in one
  // order and take the lock in the other.
  core::Instant latest_ MUSTER_GUARDED_BY(mu_);
  uint64_t next_waiter_ MUSTER_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<core::WaiterId, Waiting> waiting_ MUSTER_GUARDED_BY(mu_);
  absl::flat_hash_map<core::MemberId, Online> online_ MUSTER_GUARDED_BY(mu_);
  core::Instant armed_ MUSTER_GUARDED_BY(mu_) = core::Instant::max();
  core::Instant used_at_ MUSTER_GUARDED_BY(mu_);
  bool stored_ MUSTER_GUARDED_BY(mu_) = false;
  Status retired_ MUSTER_GUARDED_BY(mu_);
  int64_t operations_ MUSTER_GUARDED_BY(mu_) = 0;
  OperationRate rate_ MUSTER_GUARDED_BY(mu_);
  // Committed steps that wait for their turn. A turn is posted while there are
  // any.
  std::deque<Told> for_tasks_ MUSTER_GUARDED_BY(mu_);
  // Both are changed under the lock.
  std::atomic<int64_t> untold_ = 0;
  std::atomic<int64_t> untold_bytes_ = 0;  // of the untold steps
  std::atomic<int> long_steps_ = 0;
  FairQueue::Recent recent_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_JOB_H_
