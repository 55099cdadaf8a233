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
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
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

namespace muster::coordinator {

// The state that a step of a job uses while it holds the job's lock.
struct Turn {
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
    // Of all jobs; outlives the job. Null: there is no limit.
    core::TotalMemory* memory = nullptr;
    bool log_notices = true;
    Metrics* metrics = nullptr;  // outlives the job
    // Where steps are committed; outlives the job. Null: they are not.
    CommitQueue* commits = nullptr;
    // Where what is to be told to many is told; outlives the job. Null: by who
    // makes the step.
    FairQueue* turns = nullptr;
    // The memory of all jobs' steps whose answers wait for the storage;
    // outlives the job. Null: nobody counts it.
    std::atomic<int64_t>* untold_bytes = nullptr;
    // Called, without the lock, when the job needs a Tick earlier than it last
    // said.
    std::function<void(const std::shared_ptr<Job>&, core::Instant)> arm;
  };

  Job(std::string name, Options options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& name() const { return name_; }

  // Which life of the job this is; another one has none of its state.
  core::JobEpoch epoch() const { return options_.job_epoch; }

  // Brings back what was stored of the job. Before any other use.
  void Restore(std::vector<core::Record> records);

  // Calls `done` when all steps so far are committed and told: at once where
  // nothing is to be waited for. From this thread or a queue's.
  void WhenTold(std::function<void()> done);

  // Whether so many steps wait for the storage, or for their turn to be told,
  // or hold so much, that a call has to wait for those (WhenTold).
  bool Behind() const;

  // While one of these is there a step may take long. It stands around what a
  // turn does with the job.
  class LongStep {
   public:
    explicit LongStep(Job& job) : job_(job) { ++job_.long_steps_; }
    ~LongStep() { --job_.long_steps_; }
    LongStep(const LongStep&) = delete;
    LongStep& operator=(const LongStep&) = delete;

   private:
    Job& job_;
  };

  // Whether a step may have to wait for a long one: a thread that others need
  // leaves it to a turn then.
  bool busy() const { return long_steps_.load() > 0; }

  // As FairQueue's.
  bool AtOnce(core::Instant now) {
    return options_.turns == nullptr ||
           options_.turns->AtOnce(this, recent_, now);
  }

  // Whether anything of the job is stored.
  bool stored();

  // What became of one call of a batch.
  enum class Applied {
    kCalled,    // answered now or parked
    kNoAnswer,  // done; it has no answer
    kStop,      // not done; the batch ends before it
  };

  // Applies calls 0 to count - 1 of `sink` under one lock. `apply` makes call
  // i with the given waiter; `name` tells how its answer is to be named. A
  // call that has to wait while another one of the sink waits under the same
  // tag is answered CANCELLED, unless it took that one's place as its retry:
  // then that one is. Returns how many calls were applied. The
  // answers, of this sink and of others, are delivered and flushed.
  size_t Run(
      const std::shared_ptr<Sink>& sink, size_t count,
      absl::FunctionRef<Applied(size_t i, core::WaiterId waiter, Turn& turn)>
          apply,
      absl::FunctionRef<CallName(size_t i)> name);

  // In `apply` of Run alone: gives up the call with that tag; it is answered
  // CANCELLED. No effect when no such call waits.
  static void Cancel(const Sink& sink, uint64_t tag, Turn& turn);

  // Registers a member whose events go to `sink` from now on. A sink that had
  // them before is closed.
  StatusOr<core::RegisterReply> Attach(const std::shared_ptr<Sink>& sink,
                                       const core::Call& call,
                                       core::Registration registration);

  // The sink's client has gone: its parked calls are withdrawn without an
  // answer, and where it is the sink of a member's events, the member has lost
  // its connection; `dismissed`: not by its own doing. Must be the sink's last
  // use of the job.
  void Detach(Sink& sink, bool dismissed = false);

  // Gives up all calls of the sink; each is answered CANCELLED.
  void CancelAll(const std::shared_ptr<Sink>& sink);

  // The sinks of all parked calls.
  std::vector<std::shared_ptr<Sink>> ParkedSinks();

  // Does what is due.
  void Tick();

  // As core::Coordinator's.
  core::JobSnapshot Snapshot();
  core::JobSnapshot Snapshot(absl::string_view host, core::Rank first_rank,
                             int32_t rank_count);
  core::JobCounts Counts();

  // The calls that it was asked since it is here, and how many a second lately
  // as of the last SampleRate.
  struct Operations {
    int64_t total = 0;
    double per_second = 0;
  };
  Operations operations();
  void SampleRate(core::Instant now);

  // Whether a new job would be the same.
  bool Blank();

  // Whether nobody was a member, waited or called since `since`.
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
  // What a step leaves to be done without the lock.
  struct Outcome {
    std::vector<Answer> own;  // of the sink that made the step
    std::vector<Delivery> deliveries;
    std::vector<Broadcast> broadcasts;
    // What was told for the first time, and of how many members.
    std::vector<std::pair<core::EventKind, int64_t>> events;
    std::vector<core::Notice> notices;
    bool rearm = false;
    core::Instant deadline;
    // How many of the broadcasts are published, of the deliveries delivered,
    // and of both together flushed.
    size_t published = 0;
    size_t delivered = 0;
    size_t flushed = 0;
  };
  // What is to be told when its step is durable, or what is to be done then.
  struct Told {
    std::shared_ptr<Sink> sink;
    Outcome outcome;
    std::function<void()> done;
    int64_t bytes = 0;  // of `outcome`, and of what is to be stored
  };
  // Who goes on with a step when the lock is released.
  enum class Next {
    kCaller,  // calls Finish
    kElsewhere,
    kTurn,  // the caller posts the first turn
  };
  // The member's sink of events.
  struct Online {
    std::shared_ptr<Sink> sink;
    core::Incarnation incarnation;
  };

  core::Instant Now() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is for `sink`, which makes the step, is not for others; null: nobody.
  void Collect(core::Outbox& out, const Sink* sink, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CollectParked(core::Reply& reply, const Sink* sink, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Park(core::WaiterId waiter, Waiting&& waiting, Turn& turn)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Next Conclude(const std::shared_ptr<Sink>& sink, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Commit(std::vector<core::Record> records, Told told)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Committed(Told& told) MUSTER_LOCKS_EXCLUDED(mu_);
  void CountTold(int64_t bytes) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static int64_t BytesOf(const Outcome& outcome);
  bool TakesTurns(const Outcome& outcome) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Next AwaitTurn(Told told) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GoOn(Next next, const std::shared_ptr<Sink>& sink, Outcome& outcome)
      MUSTER_LOCKS_EXCLUDED(mu_);
  void PostTurn();
  void TellInTurn() MUSTER_LOCKS_EXCLUDED(mu_);
  bool Finish(const std::shared_ptr<Sink>& sink, Outcome& outcome, size_t count)
      MUSTER_LOCKS_EXCLUDED(mu_);
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
  int64_t operations_ MUSTER_GUARDED_BY(mu_) = 0;
  OperationRate rate_ MUSTER_GUARDED_BY(mu_);
  // Committed, and wait for their turn; a turn is posted while there are any.
  std::deque<Told> for_turns_ MUSTER_GUARDED_BY(mu_);
  // Changed under the lock.
  std::atomic<int64_t> untold_ = 0;
  std::atomic<int64_t> untold_bytes_ = 0;  // of these steps
  std::atomic<int> long_steps_ = 0;
  FairQueue::Recent recent_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_JOB_H_
