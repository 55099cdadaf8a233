#include "dataplane/backends/nccl/aborter.h"

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/mutex.h"

namespace muster::dataplane::nccl {

// Outlives the group if NCCL does not come back.
struct Aborter::Job {
  Platform platform;
  int device = 0;
  std::vector<Comm> aborted;
  std::vector<Comm> parted;

  Mutex mutex;
  CondVar changed;
  Keeps keeps ABSL_GUARDED_BY(mutex);
  bool done ABSL_GUARDED_BY(mutex) = false;

  void Run() {
    cuda::BeginOwnThread(platform.cuda);
    {
      const cuda::DeviceGuard guard(platform.cuda, device);
      if (!aborted.empty()) {
        platform.nccl.GroupStart();
        for (const Comm comm : aborted) platform.nccl.CommAbort(comm);
        platform.nccl.GroupEnd();
      }
      for (const Comm comm : parted) platform.nccl.CommDestroy(comm);
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

void Aborter::Begin(int device, std::vector<Comm> aborted,
                    std::vector<Comm> parted, Keeps keeps) {
  if (job_ != nullptr) return;
  std::erase(aborted, nullptr);
  std::erase(parted, nullptr);
  job_ = std::make_shared<Job>();
  job_->platform = platform_;
  job_->device = device;
  job_->aborted = std::move(aborted);
  job_->parted = std::move(parted);
  MutexLock lock(job_->mutex);
  job_->done = job_->aborted.empty() && job_->parted.empty();
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
