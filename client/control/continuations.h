// Runs the continuations of a group's futures on a thread.

#ifndef MUSTER_CLIENT_CONTROL_CONTINUATIONS_H_
#define MUSTER_CLIENT_CONTROL_CONTINUATIONS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "client/control/fork_guard.h"

namespace muster::internal {

// Continuations runs tasks one after the other, in the order in which they were
// added, on a thread that the first task starts. Thread-safe.
class Continuations {
 public:
  Continuations();
  // As Close.
  ~Continuations();

  // One that Find knows by its number, which is not 0.
  static std::shared_ptr<Continuations> Create();
  // If it is gone, one that is closed.
  static std::shared_ptr<Continuations> Find(uint64_t number);
  uint64_t number() const { return number_; }
  // One that belongs to no group.
  static std::shared_ptr<Continuations> CreateUnnumbered();

  // False in a process that was forked off: its thread is the parent's.
  bool is_here() const { return fork_guard_.is_here(); }

  Continuations(const Continuations&) = delete;
  Continuations& operator=(const Continuations&) = delete;

  // `task` throws nothing. On the caller's own thread after Close.
  void Run(std::function<void()> task);

  // Runs what is there, and ends the thread; called by a task, returns at once,
  // and the thread ends by itself.
  void Close();

  bool IsThisThread() const;

 private:
  // What the thread has, which may outlive this object.
  struct Queue {
    Mutex mutex;
    CondVar changed;
    std::deque<std::function<void()>> tasks MUSTER_GUARDED_BY(mutex);
    bool closed MUSTER_GUARDED_BY(mutex) = false;
  };

  // Takes `task` over; false after Close.
  bool Push(std::function<void()>& task);
  static void Serve(const std::shared_ptr<Queue>& queue);

  const std::shared_ptr<Queue> queue_;
  const ForkGuard fork_guard_;
  // 0: Find does not know it.
  uint64_t number_ = 0;
  mutable Mutex thread_mutex_;
  std::thread thread_ MUSTER_GUARDED_BY(thread_mutex_);
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CONTINUATIONS_H_
