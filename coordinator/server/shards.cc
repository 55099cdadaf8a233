#include "coordinator/server/shards.h"

#include <map>
#include <utility>

#include "coordinator/server/jobs/job_elsewhere.h"
#include "coordinator/storage/record_codec.h"

namespace muster::coordinator {
namespace {

JobSet ToSet(const std::vector<std::shared_ptr<Job>>& jobs) {
  JobSet set;
  for (const std::shared_ptr<Job>& job : jobs) set.insert(job.get());
  return set;
}

}  // namespace

StatusOr<int> RestoreJobs(Storage& storage,
                          const std::shared_ptr<CommitQueue>& commits,
                          Driver& driver) {
  std::map<std::string, std::vector<core::Record>> jobs;
  Status status =
      storage.Load([&](absl::string_view key, absl::string_view value) {
        StatusOr<DecodedRecord> decoded = DecodeRecord(key, value);
        if (!decoded.ok()) return decoded.status();
        jobs[decoded->job].push_back(std::move(decoded->record));
        return OkStatus();
      });
  if (!status.ok()) return status;
  for (auto& [name, records] : jobs) {
    status = driver.Restore(name, std::move(records), commits);
    if (!status.ok()) return status;
  }
  return static_cast<int>(jobs.size());
}

Shards::Shards(Driver& driver, SessionTable& sessions, NewQueue new_queue)
    : driver_(driver), sessions_(sessions), new_queue_(std::move(new_queue)) {}

Status Shards::Take(int shard, std::unique_ptr<Storage> storage) {
  Storage& loaded = *storage;
  // The queue uses the storage when a job appends to it, and none is served.
  std::shared_ptr<CommitQueue> commits = new_queue_(std::move(storage));
  const StatusOr<int> jobs = RestoreJobs(loaded, commits, driver_);
  if (!jobs.ok()) {
    driver_.Withdraw(shard);
    return jobs.status();
  }
  Set(shard, {commits, {}});
  driver_.Serve(shard, std::move(commits));
  return OkStatus();
}

// The sessions are held first: an operation that a retired job refuses is not
// answered.
std::vector<std::shared_ptr<Job>> Shards::Retire(int shard,
                                                 const std::string& owner) {
  std::vector<std::shared_ptr<Job>> jobs = driver_.Withdraw(shard);
  sessions_.Hold(ToSet(jobs));
  const Status status = JobElsewhereError(owner);
  for (const std::shared_ptr<Job>& job : jobs) job->Retire(status);
  return jobs;
}

void Shards::EndCalls(const std::vector<std::shared_ptr<Job>>& jobs,
                      const std::string& owner) {
  const Status status = JobElsewhereError(owner);
  sessions_.Drain(ToSet(jobs), status);
  for (const std::shared_ptr<Job>& job : jobs) {
    for (const std::shared_ptr<Sink>& sink : job->ParkedSinks()) {
      sink->Close(status);
    }
  }
}

Status Shards::Hold(int shard, const std::string& owner) {
  Shard state = Get(shard);
  state.held = Retire(shard, owner);
  const Status stored = state.commits->Stop();
  Set(shard, std::move(state));
  return stored;
}

void Shards::Release(int shard, const std::string& owner) {
  const Shard state = Get(shard);
  Set(shard, {});
  EndCalls(state.held, owner);
}

void Shards::Lose(const std::vector<int>& shards) {
  std::vector<Shard> lost;
  // Before any queue, which may wait for a request to the storage.
  for (const int shard : shards) {
    Shard state = Get(shard);
    Set(shard, {});
    for (std::shared_ptr<Job>& job : Retire(shard, "")) {
      state.held.push_back(std::move(job));
    }
    EndCalls(state.held, "");
    lost.push_back(std::move(state));
  }
  for (const Shard& state : lost) {
    if (state.commits == nullptr) continue;
    state.commits->Abandon(UnavailableError("another coordinator has the job"));
  }
}

void Shards::Stop() {
  for (int shard = 0; shard < kShards; ++shard) {
    const Shard state = Get(shard);
    if (state.commits != nullptr) state.commits->Stop().IgnoreError();
  }
}

int64_t Shards::depth() const {
  MutexLock lock(mu_);
  int64_t depth = 0;
  for (const Shard& shard : shards_) {
    if (shard.commits != nullptr) depth += shard.commits->depth();
  }
  return depth;
}

Shards::Shard Shards::Get(int shard) const {
  MutexLock lock(mu_);
  return shards_[shard];
}

void Shards::Set(int shard, Shard state) {
  MutexLock lock(mu_);
  std::swap(shards_[shard], state);
}

}  // namespace muster::coordinator
