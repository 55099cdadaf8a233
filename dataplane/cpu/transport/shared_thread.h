#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_SHARED_THREAD_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_SHARED_THREAD_H_

#include <unistd.h>

#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::cpu {

// SharedThread runs the short periodic tasks of all groups of a process on one
// thread, because a program may have a thousand groups. It lives as long as any
// group.
class SharedThread {
 public:
  // A task of the thread. Thread-safe.
  class Task {
   public:
    // The thread calls `step` after each Wake, at the time that the last `step`
    // returned (Instant::max(): never), and once when `socket` can be read (-1:
    // no socket). `step` must not block or throw. Throws std::system_error if
    // the process has no thread or descriptor left.
    explicit Task(std::function<Instant()> step, int socket = -1);
    // Calls Stop.
    ~Task();

    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

    void Wake();

    // After it, `step` does not run and is not called again. Do not call it
    // from `step`. Call it before `socket` is closed, unless `step` was already
    // called for `socket`.
    void Stop();

   private:
    friend class SharedThread;

    const std::function<Instant()> step_;
    const int socket_;
    const std::shared_ptr<SharedThread> thread_;
    // Guarded by the thread's mutex.
    bool is_watched_ = false;  // until its socket can be read
    bool is_due_ = false;
    Instant next_ = Instant::max();
  };

  // Only Task calls these.
  SharedThread();
  ~SharedThread();

  SharedThread(const SharedThread&) = delete;
  SharedThread& operator=(const SharedThread&) = delete;

 private:
  // The thread of this process.
  static std::shared_ptr<SharedThread> Get();

  void Add(Task* task) MUSTER_LOCKS_EXCLUDED(mutex_);
  void Remove(Task* task) MUSTER_LOCKS_EXCLUDED(mutex_);
  void Unwatch(Task* task) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake(Task* task) MUSTER_LOCKS_EXCLUDED(mutex_);
  void Run() MUSTER_LOCKS_EXCLUDED(mutex_);
  // Runs the due tasks. Returns the time at which the next one is due.
  Instant RunDue() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until `next`, a Wake or a readable socket. Releases the lock
  // meanwhile.
  void Sleep(Instant next) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False in a forked child, which does not have the thread.
  bool is_here() const { return getpid() == process_; }

  const pid_t process_ = getpid();
  int poll_ = -1;   // an epoll instance
  int woken_ = -1;  // an eventfd

  Mutex mutex_;
  CondVar stepped_;
  std::set<Task*> tasks_ MUSTER_GUARDED_BY(mutex_);
  Task* running_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  bool is_asleep_ MUSTER_GUARDED_BY(mutex_) = false;
  bool is_over_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_SHARED_THREAD_H_
