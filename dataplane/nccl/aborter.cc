#include "dataplane/nccl/aborter.h"

#include <thread>
#include <utility>

#include "dataplane/cuda/stream.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::nccl {

// Shared with the thread. Outlives the group if a call of NCCL does not return.
struct Aborter::Job {
  Platform platform;
  int device = 0;
  Comms comms;

  Mutex mutex;
  CondVar changed;
  Keeps keeps MUSTER_GUARDED_BY(mutex);
  bool done MUSTER_GUARDED_BY(mutex) = false;

  void Run() {
    cuda::BeginOwnThread(platform.cuda);
    {
      const cuda::DeviceGuard guard(platform.cuda, device);
      if (!comms.aborted.empty()) {
        platform.nccl.GroupStart();
        for (const Comm comm : comms.aborted) platform.nccl.CommAbort(comm);
        platform.nccl.GroupEnd();
      }
      for (const Comm comm : comms.parted) platform.nccl.CommDestroy(comm);
      for (const auto& [caller, comm] : comms.calling) {
        caller->AwaitEnd();
        platform.nccl.CommAbort(comm);
      }
    }
    for (;;) {
      Keeps gone;
      MutexLock lock(mutex);
      done = keeps.empty();
      if (done) break;
      gone.swap(keeps);
    }
    changed.NotifyAll();
  }
};

Aborter::~Aborter() {
  if (thread_.joinable()) thread_.join();
}

void Aborter::Begin(int device, Comms comms, Keeps keeps) {
  if (job_ != nullptr) return;
  std::erase(comms.aborted, nullptr);
  std::erase(comms.parted, nullptr);
  job_ = std::make_shared<Job>();
  job_->platform = platform_;
  job_->device = device;
  const bool none =
      comms.aborted.empty() && comms.calling.empty() && comms.parted.empty();
  job_->comms = std::move(comms);
  MutexLock lock(job_->mutex);
  job_->done = none;
  if (job_->done) return;
  job_->keeps = std::move(keeps);
  thread_ = std::thread([job = job_] { job->Run(); });
}

bool Aborter::IsDone() const {
  if (job_ == nullptr) return false;
  MutexLock lock(job_->mutex);
  return job_->done;
}

bool Aborter::Await(Instant until, Keeps keeps) {
  if (job_ == nullptr) return true;
  MutexLock lock(job_->mutex);
  while (!job_->done) {
    if (Clock::now() >= until) {
      for (auto& kept : keeps) job_->keeps.push_back(std::move(kept));
      thread_.detach();
      return false;
    }
    job_->changed.WaitUntil(job_->mutex, until);
  }
  return true;
}

}  // namespace muster::dataplane::nccl
