// Group commit: one write to the storage for all waiting commits.

#ifndef MUSTER_COORDINATOR_SERVER_JOBS_COMMIT_QUEUE_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_COMMIT_QUEUE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/core/instant.h"
#include "coordinator/core/records.h"
#include "coordinator/storage/storage.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// When written data is synced to the disk.
struct SyncPolicy {
  // Zero: sync before each commit completes, so that it survives a crash of the
  // machine. Above: sync this often. Then a crash of the machine may lose
  // acknowledged commits since the last sync; a crash of the process loses
  // none.
  std::chrono::milliseconds interval{0};
};

// CommitQueue has one thread. It takes all waiting commits, writes their
// changes with one call of the storage, or a few if they are large, syncs once,
// and then completes them in order. Under load, one sync thus serves all
// commits that arrived during the previous one. Thread-safe.
class CommitQueue {
 public:
  struct Observer {
    // Called from the queue's thread after each write, with its duration and
    // size.
    std::function<void(core::Duration took, int64_t commits, int64_t records)>
        written;
    // Called once when the storage has failed. All later commits fail, too. The
    // memory of their jobs is then ahead of the storage, so it may not be used
    // any more.
    std::function<void(const Status& status)> failed;
  };

  CommitQueue(std::unique_ptr<Storage> storage, SyncPolicy sync,
              Observer observer);

  // Called with OK when a commit is stored, else with the cause. Whether it is
  // stored is then unknown.
  using Done = std::function<void(const Status& status)>;

  // Calls Stop.
  ~CommitQueue();

  // Completes and syncs all commits that were appended and ends the thread.
  // Commits that are appended after it are never completed. Returns the
  // storage's failure if there was one.
  Status Stop() MUSTER_LOCKS_EXCLUDED(mu_);

  // Like Stop, but writes nothing more: commits fail with `cause`, which is not
  // OK. Waits for a write that is under way.
  void Abandon(const Status& cause) MUSTER_LOCKS_EXCLUDED(mu_);

  CommitQueue(const CommitQueue&) = delete;
  CommitQueue& operator=(const CommitQueue&) = delete;

  // Queues `records` of `job`. Calls `done` from the queue's thread when they
  // and all earlier commits are stored. If there are no records, `done` only
  // keeps its place in the order. Does not block.
  void Append(const std::string& job, std::vector<core::Record> records,
              Done done) MUSTER_LOCKS_EXCLUDED(mu_);

  // Queues the end of `job`: all of its records are erased.
  void AppendErasure(const std::string& job) MUSTER_LOCKS_EXCLUDED(mu_);

  // Whether answers may still be given: see Storage::owned.
  bool owned() const { return !failed_ && storage_->owned(); }

  // See Storage::health.
  Status health() const { return storage_->health(); }

  // The number of commits that are not completed.
  int64_t depth() const MUSTER_LOCKS_EXCLUDED(mu_);

 private:
  struct Commit {
    std::string job;
    std::vector<core::Record> records;
    bool erases_job = false;
    Done done;
  };

  void Run();
  // Waits for commits, or until it is time to sync. Sets `last` if no more will
  // come.
  std::vector<Commit> Take(bool* last) MUSTER_LOCKS_EXCLUDED(mu_);
  Status abandoned() const MUSTER_LOCKS_EXCLUDED(mu_);
  void Write(std::vector<Commit>& commits);
  Status WriteAll(std::vector<Commit>& commits, int64_t* records);
  void Fail(const Status& status);

  // Used only by the queue's thread, but for owned() and health().
  const std::unique_ptr<Storage> storage_;
  const SyncPolicy sync_;
  const Observer observer_;
  bool unsynced_ = false;
  core::Instant sync_due_;  // if `unsynced_`
  Status failure_;          // not OK: the storage has failed, or was given up
  std::atomic<bool> failed_ = false;

  mutable Mutex mu_;
  CondVar wakes_;
  std::vector<Commit> waiting_ MUSTER_GUARDED_BY(mu_);
  int64_t depth_ MUSTER_GUARDED_BY(mu_) = 0;
  bool stopping_ MUSTER_GUARDED_BY(mu_) = false;
  Status abandoned_ MUSTER_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_COMMIT_QUEUE_H_
