#include "base/serial_executor.h"

#include <cstddef>
#include <thread>
#include <utility>

#include "base/exception_guard.h"
#include "muster/base/status.h"

namespace muster::base {

SerialExecutor::SerialExecutor() : thread_([this] { Run(); }) {}

SerialExecutor::~SerialExecutor() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void SerialExecutor::Post(Task task) {
  {
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  changed_.NotifyAll();
}

Status SerialExecutor::Await(size_t count) {
  MutexLock lock(mutex_);
  while (done_ < count && failure_.ok()) changed_.Wait(mutex_);
  return failure_;
}

void SerialExecutor::Run() {
  mutex_.Lock();
  while (true) {
    while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
    if (stopping_ || !failure_.ok()) break;
    const Task task = std::move(waiting_.front());
    waiting_.pop_front();
    mutex_.Unlock();
    const Status status = Guarded(task);
    mutex_.Lock();
    ++done_;
    failure_.Update(status);
    changed_.NotifyAll();
  }
  mutex_.Unlock();
}

}  // namespace muster::base
