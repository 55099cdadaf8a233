#ifndef MUSTER_DATAPLANE_CPU_ENGINE_ENGINE_H_
#define MUSTER_DATAPLANE_CPU_ENGINE_ENGINE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/biased_mutex.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/p2p/point_to_point.h"
#include "dataplane/cpu/transport/shared_thread.h"
#include "dataplane/cpu/transport/shm_mailbox.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/failed_call.h"
#include "dataplane/releasable_lock.h"
#include "dataplane/work.h"

namespace muster::dataplane::cpu {

// Runs the collectives of ranks that share more than connections, for instance
// memory.
class Shortcut {
 public:
  virtual ~Shortcut() = default;

  // Whether it does `collective`, the same on all ranks. If not, that takes the
  // connections.
  virtual bool Takes(const Collective& collective) const { return true; }

  // Runs `collective`, on one thread at a time. `order`: see Backend::Run; null
  // if nobody has it. Errors: as those of algorithms.h; of one that Wake has
  // ended, any.
  virtual Status Run(const Collective& collective, ReleasableLock* order) = 0;

  // Ends what runs, and everything later. From any thread; does not block.
  virtual void Wake() = 0;

  // This rank takes part no more. Nothing runs, nor will.
  virtual void Leave(bool has_failed) = 0;
};

// Engine runs one group's collectives, one after the other in the order of
// Start and Run. Run executes the collective on the calling thread: that saves
// waking two threads, which takes longer than a small collective. Start hands
// it to the executor, a thread of the group that the first Start creates. The
// watchdog, which enforces deadlines and monitors peers, is a task of a thread
// that all groups share. A group that fails closes its connections before its
// works complete. Sends and receives do not queue behind collectives.
class Engine {
 public:
  Engine(std::string group_name, std::unique_ptr<Transport> transport)
      : Engine(std::move(group_name), std::move(transport), Unserved()) {
    Serve();
  }

  // Runs collectives, from the next one on, by `shortcut`. Before the group is
  // anybody's: nothing runs.
  void SetShortcut(std::unique_ptr<Shortcut> shortcut);

  // Sends and receives go by the mail that `make` returns, too, where it
  // reaches their peers. As SetShortcut.
  void SetMail(PointToPoint::MailMaker make, bool is_crowded) {
    point_to_point_->SetMail(std::move(make), {.is_crowded = is_crowded});
  }

  // Stops it if that was not done.
  ~Engine();

  // Until Stop.
  Transport& transport() { return *transport_; }

  // See Backend.
  std::shared_ptr<Work> Start(const Collective& collective);
  Completion Run(const Collective& collective,
                 ReleasableLock& order) MUSTER_NO_THREAD_SAFETY_ANALYSIS;
  void Abort(const Status& cause);

  // Aborts because of how `collective` fails, which is running: for a shortcut
  // that has to end what another of its threads waits for. From any thread.
  void Fail(const Collective& collective, const Status& failure);

  // Aborts, and returns when all works are complete, its threads have ended
  // and the connections are closed.
  void Stop();

 private:
  // Nobody watches it yet. Apart, so that it is stopped if no thread is left.
  struct Unserved {};
  Engine(std::string group_name, std::unique_ptr<Transport> transport,
         Unserved);
  void Serve();

  class QueuedWork;
  struct Job {
    const Collective* collective = nullptr;
    // What the collective is part of; null: its caller runs it.
    std::shared_ptr<QueuedWork> work = nullptr;
  };

  std::shared_ptr<Work> StartPointToPoint(const Collective& collective);
  // Queues `job`, the one there is. True: the watchdog has to know.
  bool Enqueue(std::list<Job>& job) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the executor, unless there is one. Errors: kResourceExhausted.
  Status NeedExecutor() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunExecutor();
  // The watchdog's step.
  Instant Look() MUSTER_LOCKS_EXCLUDED(mutex_);
  // Closes the transport of a group that is aborted while nothing runs, which
  // may take a moment: on a thread of its own.
  void CloseIdle() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs the first job. Lets go of the lock meanwhile.
  void RunFirst() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first job, which is running, has ended so: completes it and takes it
  // away. `has_begun`: another rank may know of it.
  void EndFirst(const Job& job, const Status& status, bool has_begun)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  // Run, if others are queued before it.
  Completion RunInTurn(const Collective& collective, ReleasableLock& order);
  // What is thrown in it is a status, and here.
  [[gnu::always_inline]] inline Status RunNow(const Collective& collective,
                                              ReleasableLock* order);
  // Fail, of what was running. The group's error.
  Status FailNow(const Collective& collective, const Status& failure,
                 ReleasableLock* order);
  Status RunOnConnections(const Collective& collective);
  // Takes leave of the peers and closes the connections of a group that has
  // failed, once. The caller is the one that runs collectives, or nobody does.
  // Lets go of the lock meanwhile.
  // `cuts_off`: this rank has begun a collective, and not finished it.
  void CloseTransport(bool cuts_off) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When the watchdog has to look next. Deadlines count for punctuality alone,
  // here and where Start wakes it: it sees each within kLookPeriod anyway.
  Instant NextLook(Instant now) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why the group has failed by `now`, or OK. Lets go of the lock meanwhile.
  Status FindFailure(Instant now) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Something has been started and is not complete.
  bool IsBusy() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status TimeoutOf(const Collective& collective) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant until Stop.
  const std::string group_name_;
  std::unique_ptr<Transport> transport_;

  // Of the thread that runs a collective.
  Workspace workspace_;
  std::unique_ptr<Shortcut> shortcut_;

  // Sends and receives, which have threads of their own.
  std::shared_ptr<PointToPoint> point_to_point_;

  BiasedMutex mutex_;
  // Or Stop, which waits for what runs.
  CondVar executor_wakes_;
  // The first one is running if `running_`.
  std::list<Job> jobs_ MUSTER_GUARDED_BY(mutex_);
  // The place of the one that its caller runs, while that is not queued: it
  // must not fail for want of memory when it already runs.
  std::list<Job> callers_job_ MUSTER_GUARDED_BY(mutex_) = std::list<Job>(1);
  bool running_ MUSTER_GUARDED_BY(mutex_) = false;
  // How many were queued, and had been when the watchdog looked last.
  uint64_t started_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t seen_started_ MUSTER_GUARDED_BY(mutex_) = 0;
  Status abort_cause_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  // CloseTransport was called.
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  // In which collective, and when, the watchdog first saw that a peer is gone.
  FailedCall gone_noticed_in_ MUSTER_GUARDED_BY(mutex_);
  Instant gone_noticed_at_ MUSTER_GUARDED_BY(mutex_);
  // When the watchdog looks next, unless woken; max() is never.
  Instant next_look_ MUSTER_GUARDED_BY(mutex_) = Instant::max();

  std::thread executor_;
  std::thread closer_;
  // Nothing until Serve.
  std::optional<SharedThread::Task> watchdog_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_ENGINE_ENGINE_H_
