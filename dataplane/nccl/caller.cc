#include "dataplane/nccl/caller.h"

#include <utility>

#include "dataplane/cuda/stream.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::nccl {

// Shared with the thread. Outlives the Caller if a call does not return.
struct Caller::Job {
  Platform platform;
  int device = 0;

  Mutex mutex;
  CondVar changed;
  // Null while the thread runs it.
  Call call MUSTER_GUARDED_BY(mutex);
  bool calling MUSTER_GUARDED_BY(mutex) = false;
  Status status MUSTER_GUARDED_BY(mutex);
  bool stopping MUSTER_GUARDED_BY(mutex) = false;

  void Run() {
    cuda::BeginOwnThread(platform.cuda);
    const cuda::DeviceGuard guard(platform.cuda, device);
    MutexLock lock(mutex);
    for (;;) {
      while (call == nullptr && !stopping) changed.Wait(mutex);
      if (call == nullptr) return;
      Call next = std::exchange(call, nullptr);
      mutex.Unlock();
      Status ended = next();
      // Frees what the call owns before its end is announced.
      next = nullptr;
      mutex.Lock();
      status = std::move(ended);
      calling = false;
      changed.NotifyAll();
    }
  }
};

Caller::Caller(const Platform& platform, int device)
    : job_(std::make_shared<Job>()) {
  job_->platform = platform;
  job_->device = device;
  thread_ = std::thread([job = job_] { job->Run(); });
}

Caller::~Caller() {
  bool calling = false;
  {
    MutexLock lock(job_->mutex);
    job_->stopping = true;
    calling = job_->calling;
    job_->changed.NotifyAll();
  }
  if (calling) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Caller::Begin(Call call) {
  MutexLock lock(job_->mutex);
  job_->call = std::move(call);
  job_->calling = true;
  job_->changed.NotifyAll();
}

std::optional<Status> Caller::End() const {
  MutexLock lock(job_->mutex);
  if (job_->calling) return std::nullopt;
  return job_->status;
}

void Caller::AwaitEnd() const {
  MutexLock lock(job_->mutex);
  while (job_->calling) job_->changed.Wait(job_->mutex);
}

}  // namespace muster::dataplane::nccl
