#ifndef MUSTER_BASE_SERIAL_EXECUTOR_H_
#define MUSTER_BASE_SERIAL_EXECUTOR_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::base {

// SerialExecutor runs tasks on a thread of its own, in the order of Post, until
// one fails. A single thread calls Post and Await.
class SerialExecutor {
 public:
  using Task = std::function<Status()>;

  SerialExecutor();

  // Waits for the running task and drops the others.
  ~SerialExecutor();

  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  void Post(Task task);

  // Waits until the first `count` tasks have run. Returns the error of the
  // first task that failed.
  Status Await(size_t count);

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> waiting_ MUSTER_GUARDED_BY(mutex_);
  size_t done_ MUSTER_GUARDED_BY(mutex_) = 0;
  Status failure_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace muster::base

namespace muster {

// Used so often that they need no prefix.
using base::SerialExecutor;

}  // namespace muster

#endif  // MUSTER_BASE_SERIAL_EXECUTOR_H_
