#include "base/serial_executor.h"

#include <cstddef>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "base/exception_guard.h"

namespace muster::base {

Errands::Errands() : thread_([this] { Run(); }) {}

Errands::~Errands() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void Errands::Post(Errand errand) {
  {
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(errand));
  }
  changed_.NotifyAll();
}

absl::Status Errands::Await(size_t count) {
  MutexLock lock(mutex_);
  while (done_ < count && failure_.ok()) changed_.Wait(mutex_);
  return failure_;
}

void Errands::Run() {
  mutex_.Lock();
  while (true) {
    while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
    if (stopping_ || !failure_.ok()) break;
    const Errand errand = std::move(waiting_.front());
    waiting_.pop_front();
    mutex_.Unlock();
    const absl::Status status = Guarded(errand);
    mutex_.Lock();
    ++done_;
    failure_.Update(status);
    changed_.NotifyAll();
  }
  mutex_.Unlock();
}

}  // namespace muster::base
