#include "coordinator/server/jobs/commit_queue.h"

#include <chrono>
#include <utility>

#include "coordinator/storage/record_codec.h"

namespace muster::coordinator {
namespace {

// The storage copies each write, so more bytes than this are split into several
// writes of whole commits.
constexpr size_t kWriteBytes = 4 << 20;

core::Instant Now() { return std::chrono::steady_clock::now(); }

}  // namespace

CommitQueue::CommitQueue(std::unique_ptr<Storage> storage, SyncPolicy sync,
                         Observer observer)
    : storage_(std::move(storage)),
      sync_(sync),
      observer_(std::move(observer)),
      thread_([this] { Run(); }) {}

CommitQueue::~CommitQueue() { Stop().IgnoreError(); }

Status CommitQueue::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wakes_.NotifyOne();
  if (thread_.joinable()) thread_.join();
  return failure_;
}

void CommitQueue::Abandon(const Status& cause) {
  {
    MutexLock lock(mu_);
    abandoned_ = cause;
  }
  failed_ = true;
  Stop().IgnoreError();
}

Status CommitQueue::abandoned() const {
  MutexLock lock(mu_);
  return abandoned_;
}

void CommitQueue::Append(const std::string& job,
                         std::vector<core::Record> records, Done done) {
  {
    MutexLock lock(mu_);
    // Neither calls nor destroys `done` here: it may refer to an object whose
    // lock the caller holds.
    waiting_.push_back({job, std::move(records), false, std::move(done)});
    ++depth_;
    if (waiting_.size() > 1) return;  // The thread has been woken.
  }
  wakes_.NotifyOne();
}

void CommitQueue::AppendErasure(const std::string& job) {
  {
    MutexLock lock(mu_);
    waiting_.push_back({job, {}, true, nullptr});
    ++depth_;
  }
  wakes_.NotifyOne();
}

int64_t CommitQueue::depth() const {
  MutexLock lock(mu_);
  return depth_;
}

void CommitQueue::Run() {
  bool last = false;
  while (!last) {
    std::vector<Commit> commits = Take(&last);
    if (failure_.ok()) failure_ = abandoned();
    if (failure_.ok()) Write(commits);
    for (Commit& commit : commits) {
      if (commit.done) commit.done(failure_);
    }
    if (failure_.ok() && unsynced_ && (last || Now() >= sync_due_)) {
      unsynced_ = false;
      const Status synced = storage_->Sync();
      if (!synced.ok()) Fail(synced);
    }
    MutexLock lock(mu_);
    depth_ -= static_cast<int64_t>(commits.size());
    // A commit whose completion was under way may have been followed by others
    // of its job.
    last = last && waiting_.empty();
  }
}

std::vector<CommitQueue::Commit> CommitQueue::Take(bool* last) {
  std::vector<Commit> commits;
  MutexLock lock(mu_);
  while (waiting_.empty() && !stopping_ && !(unsynced_ && Now() >= sync_due_)) {
    if (unsynced_) {
      wakes_.WaitUntil(mu_, sync_due_);
    } else {
      wakes_.Wait(mu_);
    }
  }
  std::swap(commits, waiting_);
  *last = stopping_;
  return commits;
}

void CommitQueue::Write(std::vector<Commit>& commits) {
  int64_t records = 0;
  const core::Instant start = Now();
  Status status = WriteAll(commits, &records);
  if (status.ok() && records > 0 && sync_.interval.count() == 0) {
    status = storage_->Sync();
  }
  if (!status.ok()) return Fail(status);
  if (records > 0 && sync_.interval.count() > 0 && !unsynced_) {
    unsynced_ = true;
    sync_due_ = start + sync_.interval;
  }
  if (records > 0 && observer_.written) {
    observer_.written(Now() - start, static_cast<int64_t>(commits.size()),
                      records);
  }
}

void CommitQueue::Fail(const Status& status) {
  failure_ = status;
  failed_ = true;
  if (observer_.failed) observer_.failed(status);
}

Status CommitQueue::WriteAll(std::vector<Commit>& commits, int64_t* records) {
  std::vector<StorageChange> changes;
  size_t bytes = 0;
  const auto write = [&] {
    *records += static_cast<int64_t>(changes.size());
    Status status = changes.empty() ? OkStatus() : storage_->Write(changes);
    changes.clear();
    bytes = 0;
    return status;
  };
  for (Commit& commit : commits) {
    for (const core::Record& record : commit.records) {
      changes.push_back({EncodeKey(commit.job, record), EncodeValue(record)});
      bytes += changes.back().key.size();
      if (changes.back().value.has_value()) {
        bytes += changes.back().value->size();
      }
    }
    // The records are in `changes` now, and may be large.
    commit.records = {};
    if (!commit.erases_job && bytes < kWriteBytes) continue;
    Status status = write();
    if (!status.ok()) return status;
    if (!commit.erases_job) continue;
    status = storage_->ErasePrefix(JobPrefix(commit.job));
    if (!status.ok()) return status;
  }
  return write();
}

}  // namespace muster::coordinator
