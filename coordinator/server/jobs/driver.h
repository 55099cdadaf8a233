#ifndef MUSTER_COORDINATOR_SERVER_JOBS_DRIVER_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_DRIVER_H_

#include <array>
#include <atomic>
#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/records.h"
#include "coordinator/core/total_memory.h"
#include "coordinator/server/auth/tokens.h"
#include "coordinator/server/jobs/commit_queue.h"
#include "coordinator/server/jobs/fair_queue.h"
#include "coordinator/server/jobs/job.h"
#include "coordinator/server/ops/metrics.h"
#include "coordinator/storage/fleet.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// Driver holds the jobs of a coordinator and the one thread that ticks them:
// the thread sleeps until the next deadline of any job. Jobs have their own
// locks and do not wait for each other. Thread-safe.
class Driver {
 public:
  struct Options {
    core::CoordinatorOptions core;
    core::CoordinatorEpoch epoch;
    int jobs_max = 0;
    // The most jobs that one token may have created.
    int jobs_per_token_max = INT_MAX;
    // The memory of all jobs; outlives the driver. Null: no limit.
    core::TotalMemory* memory = nullptr;
    // A job that was idle for this long is forgotten, keys included.
    core::Duration idle_job_retention = std::chrono::hours(1);
    bool log_notices = true;
    Metrics* metrics = nullptr;  // outlives the driver
    // Commits the jobs' steps. Null: the jobs do not survive the process, or
    // `elsewhere` is set.
    std::shared_ptr<CommitQueue> commits;
    // Set: several coordinators share the jobs, and this one has only those of
    // the shards that it serves (Serve). Makes the error for a job of another.
    // Takes no lock of a job or the driver.
    std::function<Status(absl::string_view job)> elsewhere;
    // Runs the jobs' long work; outlives the driver. Null: jobs run it at once.
    FairQueue* fair_queue = nullptr;
    // See Job::Options.
    std::atomic<int64_t>* untold_bytes = nullptr;
  };

  explicit Driver(const Options& options);
  // Stops the ticker. No job may be in use.
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Restores a job from its records. Call it before Start, or before Serve of
  // its shard. A job beyond the limit of jobs is restored, too. Its steps are
  // committed by `commits`, or by that of the options.
  // Errors: DATA_LOSS (the records are not those of a job).
  Status Restore(const std::string& name, std::vector<core::Record> records,
                 std::shared_ptr<CommitQueue> commits = nullptr);

  // From now on this coordinator serves the jobs of the shard (storage/fleet.h)
  // with this queue.
  void Serve(int shard, std::shared_ptr<CommitQueue> commits);

  // From now on it does not. Returns the shard's jobs, which are not here any
  // more, by name.
  std::vector<std::shared_ptr<Job>> Withdraw(int shard);

  // Starts the ticker, which calls `housekeeping` about once a second.
  void Start(std::function<void(core::Instant)> housekeeping);

  // Joins the ticker; no deadline is processed any more. May be called more
  // than once, but not by two threads at a time.
  void Stop();

  // Returns the job of that name. Creates it if there is none, and counts it
  // for `token` if that is not null.
  // Errors: INVALID_ARGUMENT (the name), RESOURCE_EXHAUSTED (limit jobs, limit
  //   jobs_per_token), UNAVAILABLE (the coordinator drains), and that of
  //   Options::elsewhere.
  StatusOr<std::shared_ptr<Job>> GetJob(absl::string_view name,
                                        const TokenDigest* token = nullptr);

  // Like GetJob, but creates no job.
  // Errors: INVALID_ARGUMENT, NOT_FOUND, and that of Options::elsewhere.
  StatusOr<std::shared_ptr<Job>> FindJob(absl::string_view name);

  // Sorted by name.
  std::vector<std::shared_ptr<Job>> Jobs();

  // From now on GetJob fails with `status`, waiting calls and their sessions
  // are closed with it, and no lease or deadline ends any more.
  void Drain(const Status& status);

  const core::Limits& limits() const { return options_.core.limits; }
  core::CoordinatorEpoch epoch() const { return options_.epoch; }
  core::Instant started_at() const { return started_at_; }

 private:
  struct Due {
    core::Instant at;
    std::weak_ptr<Job> job;
    friend bool operator<(const Due& a, const Due& b) { return a.at > b.at; }
  };

  std::shared_ptr<Job> NewJob(const std::string& name, core::JobEpoch epoch,
                              std::shared_ptr<CommitQueue> commits);
  StatusOr<std::shared_ptr<Job>> FindLocked(absl::string_view name)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(jobs_mu_);
  bool draining();
  Status CheckJobs(absl::string_view name, const TokenDigest* token)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(jobs_mu_);
  void ForgetMaker(const std::string& name)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(jobs_mu_);
  void Arm(const std::shared_ptr<Job>& job, core::Instant at);
  void TickerLoop();
  void Do(Job& job, std::function<void()> work);
  std::vector<std::shared_ptr<Job>> WaitForDue(core::Instant until);
  // Waits a moment if the ticker woke late, before any member is declared lost.
  void CatchUp(core::Duration late) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(ticker_mu_);
  core::Duration ComputeRetention(Job& job) const;
  void ForgetIdleJobs(core::Instant now);

  const Options options_;
  const core::Instant started_at_;
  std::function<void(core::Instant)> housekeeping_;  // set before the thread

  // Taken alone or before a job's lock, never after one.
  Mutex jobs_mu_;
  absl::btree_map<std::string, std::shared_ptr<Job>> jobs_
      MUSTER_GUARDED_BY(jobs_mu_);
  // The token that created each job, and the number of jobs for each token.
  absl::btree_map<std::string, TokenDigest> makers_ MUSTER_GUARDED_BY(jobs_mu_);
  absl::btree_map<TokenDigest, int> made_ MUSTER_GUARDED_BY(jobs_mu_);
  Status draining_ MUSTER_GUARDED_BY(jobs_mu_);
  // By shard; null: it is not served.
  std::array<std::shared_ptr<CommitQueue>, kShards> served_
      MUSTER_GUARDED_BY(jobs_mu_);

  // A leaf: no other lock is taken under it.
  Mutex ticker_mu_;
  CondVar ticker_wakes_;
  // May hold entries that are no longer due; an additional Tick is harmless.
  std::priority_queue<Due> due_ MUSTER_GUARDED_BY(ticker_mu_);
  bool stopping_ MUSTER_GUARDED_BY(ticker_mu_) = false;

  std::thread ticker_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_DRIVER_H_
