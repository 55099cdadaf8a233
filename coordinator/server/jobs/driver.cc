#include "coordinator/server/jobs/driver.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/server/auth/job_name.h"
#include "glog/logging.h"

namespace muster::coordinator {
namespace {

constexpr core::Duration kHousekeepingInterval = std::chrono::seconds(1);
// A ticker that wakes this late was stopped together with the process (SIGSTOP,
// migration of a virtual machine): heartbeats came meanwhile, and nobody has
// read them.
constexpr core::Duration kLate = std::chrono::milliseconds(300);
// The time to read those heartbeats.
constexpr core::Duration kCatchUpTime = std::chrono::milliseconds(500);
// Limited, because lost members must be told even on a machine that is always
// late.
constexpr int kCatchUpsMax = 3;

uint64_t RandomNonZero() {
  std::random_device device;
  uint64_t number = 0;
  while (number == 0) number = (uint64_t{device()} << 32) | device();
  return number;
}

core::Instant Now() { return std::chrono::steady_clock::now(); }

}  // namespace

Driver::Driver(const Options& options)
    : options_(options), started_at_(Now()) {}

Driver::~Driver() { Stop(); }

void Driver::Stop() {
  {
    MutexLock lock(ticker_mu_);
    stopping_ = true;
  }
  ticker_wakes_.NotifyOne();
  if (ticker_.joinable()) ticker_.join();
}

void Driver::Start(std::function<void(core::Instant)> housekeeping) {
  housekeeping_ = std::move(housekeeping);
  ticker_ = std::thread([this] { TickerLoop(); });
}

Status Driver::CheckJobs(absl::string_view name, const TokenDigest* token) {
  Status status =
      core::CheckLimit("jobs", options_.jobs_max,
                       static_cast<int64_t>(jobs_.size()) + 1, {"job", name});
  if (!status.ok() || token == nullptr) return status;
  const auto made = made_.find(*token);
  const int count = made == made_.end() ? 1 : made->second + 1;
  if (count <= options_.jobs_per_token_max) return OkStatus();
  return core::LimitError("jobs_per_token", options_.jobs_per_token_max, count,
                          {"job", name}, " by one token");
}

void Driver::ForgetMaker(const std::string& name) {
  const auto maker = makers_.find(name);
  if (maker == makers_.end()) return;
  const auto made = made_.find(maker->second);
  if (--made->second == 0) made_.erase(made);
  makers_.erase(maker);
}

StatusOr<std::shared_ptr<Job>> Driver::GetJob(absl::string_view name,
                                              const TokenDigest* token) {
  Status status = CheckJobName(name);
  if (!status.ok()) return status;
  MutexLock lock(jobs_mu_);
  if (!draining_.ok()) return draining_;
  const StatusOr<std::shared_ptr<Job>> known = FindLocked(name);
  if (!known.ok() || *known != nullptr) return known;
  status = CheckJobs(name, token);
  if (!status.ok()) return status;
  auto job = NewJob(std::string(name), core::JobEpoch(RandomNonZero()),
                    options_.elsewhere == nullptr ? options_.commits
                                                  : served_[FindShard(name)]);
  jobs_.emplace(job->name(), job);
  if (token != nullptr) {
    makers_.emplace(job->name(), *token);
    ++made_[*token];
  }
  return job;
}

// Null: there is no such job, and this coordinator may make it.
StatusOr<std::shared_ptr<Job>> Driver::FindLocked(absl::string_view name) {
  if (options_.elsewhere != nullptr && served_[FindShard(name)] == nullptr) {
    return options_.elsewhere(name);
  }
  const auto known = jobs_.find(name);
  return known == jobs_.end() ? nullptr : known->second;
}

void Driver::Serve(int shard, std::shared_ptr<CommitQueue> commits) {
  MutexLock lock(jobs_mu_);
  served_[shard] = std::move(commits);
}

std::vector<std::shared_ptr<Job>> Driver::Withdraw(int shard) {
  std::vector<std::shared_ptr<Job>> jobs;
  MutexLock lock(jobs_mu_);
  served_[shard] = nullptr;
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    if (FindShard(it->first) != shard) {
      ++it;
      continue;
    }
    ForgetMaker(it->first);
    jobs.push_back(std::move(it->second));
    it = jobs_.erase(it);
  }
  return jobs;
}

std::shared_ptr<Job> Driver::NewJob(const std::string& name,
                                    core::JobEpoch epoch,
                                    std::shared_ptr<CommitQueue> commits) {
  Job::Options options;
  options.core = options_.core;
  options.core.durable = commits != nullptr;
  options.epoch = options_.epoch;
  options.job_epoch = epoch;
  options.memory = options_.memory;
  options.log_notices = options_.log_notices;
  options.metrics = options_.metrics;
  options.commits = std::move(commits);
  options.fair_queue = options_.fair_queue;
  options.untold_bytes = options_.untold_bytes;
  options.arm = [this](const std::shared_ptr<Job>& job, core::Instant at) {
    Arm(job, at);
  };
  return std::make_shared<Job>(name, std::move(options));
}

Status Driver::Restore(const std::string& name,
                       std::vector<core::Record> records,
                       std::shared_ptr<CommitQueue> commits) {
  Status status = CheckJobName(name);
  core::JobEpoch epoch;
  for (const core::Record& record : records) {
    const auto* job = std::get_if<core::JobRecord>(&record);
    if (job != nullptr) epoch = job->epoch;
  }
  if (!status.ok() || epoch == core::JobEpoch()) {
    return DataLossError(absl::StrCat("storage: ", records.size(),
                                      " records of job ", base::Quote(name),
                                      " are not those of a job"));
  }
  const std::shared_ptr<Job> job = NewJob(
      name, epoch, commits == nullptr ? options_.commits : std::move(commits));
  job->Restore(std::move(records));
  MutexLock lock(jobs_mu_);
  jobs_.emplace(name, job);
  return OkStatus();
}

StatusOr<std::shared_ptr<Job>> Driver::FindJob(absl::string_view name) {
  Status status = CheckJobName(name);
  if (!status.ok()) return status;
  MutexLock lock(jobs_mu_);
  const StatusOr<std::shared_ptr<Job>> known = FindLocked(name);
  if (!known.ok() || *known != nullptr) return known;
  return NotFoundError(absl::StrCat("no job ", base::Quote(name), " here"));
}

std::vector<std::shared_ptr<Job>> Driver::Jobs() {
  MutexLock lock(jobs_mu_);
  std::vector<std::shared_ptr<Job>> jobs;
  jobs.reserve(jobs_.size());
  for (const auto& [name, job] : jobs_) jobs.push_back(job);
  return jobs;
}

void Driver::Drain(const Status& status) {
  {
    MutexLock lock(jobs_mu_);
    draining_ = status;
  }
  for (const std::shared_ptr<Job>& job : Jobs()) {
    for (const std::shared_ptr<Sink>& sink : job->ParkedSinks()) {
      sink->Close(status);
    }
  }
}

bool Driver::draining() {
  MutexLock lock(jobs_mu_);
  return !draining_.ok();
}

void Driver::Arm(const std::shared_ptr<Job>& job, core::Instant at) {
  {
    MutexLock lock(ticker_mu_);
    const bool earliest = due_.empty() || at < due_.top().at;
    due_.push({at, job});
    if (!earliest) return;
  }
  ticker_wakes_.NotifyOne();
}

std::vector<std::shared_ptr<Job>> Driver::WaitForDue(core::Instant until) {
  std::vector<std::shared_ptr<Job>> jobs;
  MutexLock lock(ticker_mu_);
  while (!stopping_) {
    const core::Instant now = Now();
    while (!due_.empty() && due_.top().at <= now) {
      std::shared_ptr<Job> job = due_.top().job.lock();
      due_.pop();
      // One job may be in the list twice; its second Tick finds nothing to do.
      if (job != nullptr) jobs.push_back(std::move(job));
    }
    if (!jobs.empty() || now >= until) break;
    const core::Instant wake_at =
        due_.empty() ? until : std::min(until, due_.top().at);
    ticker_wakes_.WaitUntil(ticker_mu_, wake_at);
    CatchUp(Now() - wake_at);
  }
  return jobs;
}

void Driver::CatchUp(core::Duration late) {
  for (int i = 0; i < kCatchUpsMax && late >= kLate && !stopping_; ++i) {
    if (options_.log_notices) {
      LOG(WARNING) << "stood_still: for_ms="
                   << std::chrono::duration_cast<std::chrono::milliseconds>(
                          late)
                          .count();
    }
    const core::Instant until = Now() + kCatchUpTime;
    while (!stopping_ && Now() < until) {
      ticker_wakes_.WaitUntil(ticker_mu_, until);
    }
    late = Now() - until;
  }
}

// Never waits for a long step, because other jobs are due as well.
void Driver::Do(Job& job, std::function<void()> work) {
  if (options_.fair_queue == nullptr || !job.busy()) return work();
  options_.fair_queue->Post(&job, nullptr, std::move(work));
}

void Driver::TickerLoop() {
  core::Instant next_housekeeping = Now() + kHousekeepingInterval;
  while (true) {
    for (const std::shared_ptr<Job>& job : WaitForDue(next_housekeeping)) {
      // A coordinator that drains declares nobody lost: it has closed the
      // connections itself, and its successor must find the members alive.
      Do(*job, [this, job] {
        if (!draining()) job->Tick();
      });
    }
    {
      MutexLock lock(ticker_mu_);
      if (stopping_) return;
    }
    const core::Instant now = Now();
    if (now < next_housekeeping) continue;
    next_housekeeping = now + kHousekeepingInterval;
    if (housekeeping_) housekeeping_(now);
    for (const std::shared_ptr<Job>& job : Jobs()) {
      Do(*job, [job, now] { job->SampleRate(now); });
    }
    ForgetIdleJobs(now);
  }
}

// Names that were only looked up must not use up the limit of jobs.
core::Duration Driver::ComputeRetention(Job& job) const {
  if (!job.Blank()) return options_.idle_job_retention;
  return std::min(options_.idle_job_retention, kHousekeepingInterval);
}

void Driver::ForgetIdleJobs(core::Instant now) {
  std::vector<std::shared_ptr<Job>> forgotten;
  {
    MutexLock lock(jobs_mu_);
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      // Nobody else holds the job, or can get it while the lock is held.
      if (it->second.use_count() == 1 &&
          it->second->IdleSince(now - ComputeRetention(*it->second))) {
        // The erasure comes before the writes of a new job with this name.
        it->second->Erase();
        ForgetMaker(it->first);
        forgotten.push_back(std::move(it->second));
        it = jobs_.erase(it);
      } else {
        ++it;
      }
    }
  }
  if (!options_.log_notices) return;
  for (const std::shared_ptr<Job>& job : forgotten) {
    LOG(INFO) << "job_forgotten: job=" << job->name();
  }
}

}  // namespace muster::coordinator
