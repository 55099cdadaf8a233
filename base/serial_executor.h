#ifndef MUSTER_BASE_SERIAL_EXECUTOR_H_
#define MUSTER_BASE_SERIAL_EXECUTOR_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"

namespace muster::base {

// SerialExecutor are run by a thread of their own, in the order of Post, until
// one fails. Posted and awaited by one thread.
class SerialExecutor {
 public:
  using Task = std::function<Status()>;

  SerialExecutor();

  // Waits for the one that runs. The others do not run any more.
  ~SerialExecutor();

  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  void Post(Task task);

  // Waits until the first `count` have run. Errors: of the first that failed.
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

// So common that they go without the prefix.
using base::SerialExecutor;

}  // namespace muster

#endif  // MUSTER_BASE_SERIAL_EXECUTOR_H_
