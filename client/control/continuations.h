// Runs the continuations of a group's futures on a thread.

#ifndef MUSTER_CLIENT_CONTROL_CONTINUATIONS_H_
#define MUSTER_CLIENT_CONTROL_CONTINUATIONS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "client/control/fork_guard.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::internal {

// Continuations runs tasks one after the other, in the order in which they were
// added, on a thread that the first task starts. Thread-safe.
class Continuations {
 public:
  Continuations();
  // Calls Close.
  ~Continuations();

  // Makes one with a number other than 0, by which Find finds it.
  static std::shared_ptr<Continuations> Create();
  // Returns a closed one if there is none with this number any more.
  static std::shared_ptr<Continuations> Find(uint64_t number);
  uint64_t number() const { return number_; }
  // Makes one that belongs to no group.
  static std::shared_ptr<Continuations> CreateUnnumbered();

  // False in a forked child, which does not have the parent's thread.
  bool is_here() const { return fork_guard_.is_here(); }

  Continuations(const Continuations&) = delete;
  Continuations& operator=(const Continuations&) = delete;

  // `task` must not throw. After Close it runs on the calling thread.
  void Run(std::function<void()> task);

  // Runs all tasks that were added, then ends the thread. A call from a task
  // returns at once; the thread then ends by itself.
  void Close();

  bool IsThisThread() const;

 private:
  // State that the thread shares. It may outlive this object.
  struct Queue {
    Mutex mutex;
    CondVar changed;
    std::deque<std::function<void()>> tasks MUSTER_GUARDED_BY(mutex);
    bool closed MUSTER_GUARDED_BY(mutex) = false;
  };

  // Takes `task` over; returns false after Close.
  bool Push(std::function<void()>& task);
  static void Serve(const std::shared_ptr<Queue>& queue);

  const std::shared_ptr<Queue> queue_;
  const ForkGuard fork_guard_;
  // If 0, Find does not know it.
  uint64_t number_ = 0;
  mutable Mutex thread_mutex_;
  std::thread thread_ MUSTER_GUARDED_BY(thread_mutex_);
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CONTINUATIONS_H_
