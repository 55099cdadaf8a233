#include "coordinator/server/jobs/fair_queue.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

namespace muster::coordinator {
namespace {

// Lowers the thread's priority. With more threads than processors, the reading
// threads then go first: their work is short, and clients wait for it. Needs no
// privilege; has no effect if the system does not allow it.
void GiveWay() {
  constexpr int kNice = 3;
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNice);
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  const sched_param none = {};
  sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace

core::Duration FairQueue::ThreadTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::duration_cast<core::Duration>(
      std::chrono::seconds(time.tv_sec) +
      std::chrono::nanoseconds(time.tv_nsec));
}

FairQueue::FairQueue(int threads, Clock clock)
    : clock_(std::move(clock)), threads_per_job_(std::max(1, threads / 2)) {
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

FairQueue::~FairQueue() { Stop(); }

void FairQueue::Post(const Job* job, const void* owner,
                     std::function<void()> task) {
  {
    MutexLock lock(mu_);
    if (!stopped_) {
      Share& share = shares_[job];
      share.job = job;
      Remove(share);
      // A job without work does not save up processor time.
      if (share.tasks.empty()) share.cost = std::max(share.cost, level_);
      const auto [tasks, fresh] = share.tasks.try_emplace(owner);
      tasks->second.push_back(std::move(task));
      if (fresh) share.rotation.push_back(owner);
      Insert(share);
      task = nullptr;
    }
  }
  if (task != nullptr) return task();
  wakes_.NotifyOne();
}

bool FairQueue::AtOnce(const Job* job, Recent& recent, core::Instant now) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const core::Duration::rep time = now.time_since_epoch().count();
  const Job* const last = last_.load(kRelaxed);
  if (last != job) {
    last_.store(job, kRelaxed);
    if (last != nullptr) changed_at_.store(time, kRelaxed);
  }
  const int64_t window = time / kAtOnceWindow.count();
  if (recent.window_.exchange(window, kRelaxed) != window) {
    recent.count_.store(0, kRelaxed);
  }
  if (recent.count_.fetch_add(1, kRelaxed) < kMessagesAtOnceMax) return true;
  const core::Duration::rep changed_at = changed_at_.load(kRelaxed);
  return changed_at == 0 || time - changed_at > kCompanyTime.count();
}

void FairQueue::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wakes_.NotifyAll();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  MutexLock lock(mu_);
  stopped_ = true;
}

// Lists the share in ready_ or idle_ by its present state.
void FairQueue::Insert(const Share& share) {
  if (!share.rotation.empty() && share.running < threads_per_job_) {
    ready_.insert({share.cost, share.job});
  } else if (share.tasks.empty()) {
    idle_.insert({share.cost, share.job});
  }
}

void FairQueue::Remove(const Share& share) {
  ready_.erase({share.cost, share.job});
  idle_.erase({share.cost, share.job});
}

std::optional<FairQueue::Task> FairQueue::Take() {
  MutexLock lock(mu_);
  while (ready_.empty()) {
    // A running turn may post another one.
    if (stopping_ && running_ == 0) return std::nullopt;
    wakes_.Wait(mu_);
  }
  Task task;
  task.job = ready_.begin()->second;
  Share& share = shares_.at(task.job);
  Remove(share);
  level_ = std::max(level_, share.cost);
  task.owner = share.rotation.front();
  share.rotation.pop_front();
  Tasks& tasks = share.tasks.at(task.owner);
  task.run = std::move(tasks.front());
  tasks.pop_front();
  ++share.running;
  ++running_;
  Insert(share);
  while (!idle_.empty() && idle_.begin()->first <= level_) {
    shares_.erase(idle_.begin()->second);
    idle_.erase(idle_.begin());
  }
  return task;
}

void FairQueue::Charge(const Task& task, core::Duration cost) {
  MutexLock lock(mu_);
  Share& share = shares_.at(task.job);
  Remove(share);
  share.cost += cost;
  --share.running;
  const auto tasks = share.tasks.find(task.owner);
  if (tasks->second.empty()) {
    share.tasks.erase(tasks);
  } else {
    share.rotation.push_back(task.owner);
  }
  Insert(share);
  --running_;
  // The end of this turn may have made its job ready again.
  if (!ready_.empty()) wakes_.NotifyOne();
  if (running_ > 0 || !ready_.empty()) return;
  if (stopping_) wakes_.NotifyAll();
  // Nobody waits, so all costs start over.
  shares_.clear();
  idle_.clear();
  level_ = {};
}

void FairQueue::Run() {
  GiveWay();
  while (std::optional<Task> task = Take()) {
    const core::Duration before = clock_();
    task->run();
    // Destroys what the turn holds without the lock, before the queue counts as
    // idle.
    task->run = nullptr;
    Charge(*task, clock_() - before);
  }
}

}  // namespace muster::coordinator
