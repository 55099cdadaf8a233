#ifndef MUSTER_DATAPLANE_CPU_ENGINE_ENGINE_H_
#define MUSTER_DATAPLANE_CPU_ENGINE_ENGINE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/collectives/user_reduction.h"
#include "dataplane/cpu/p2p/point_to_point.h"
#include "dataplane/cpu/transport/shared_thread.h"
#include "dataplane/cpu/transport/shm_mailbox.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/failed_call.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane::cpu {

// Runs the collectives of ranks that share more than connections, such as
// memory.
class Shortcut {
 public:
  virtual ~Shortcut() = default;

  // Whether the shortcut runs `collective`; the same on all ranks. If not, the
  // connections run it.
  virtual bool Takes(const Collective& collective) const { return true; }

  // As Backend::Prepare, for a collective that the shortcut takes. From any
  // thread.
  virtual std::unique_ptr<Backend::Prepared> Prepare(
      const Collective& collective) {
    return nullptr;
  }

  // Runs `collective`, on one thread at a time. `prepared`: what Prepare has
  // returned for it, or null. Errors: as in algorithms.h; any error after Wake.
  virtual Status Run(const Collective& collective,
                     Backend::Prepared* prepared) = 0;

  // Makes the running collective and all later ones fail. From any thread; does
  // not block.
  virtual void Wake() = 0;

  // The last call: this rank leaves. No collective runs now or later.
  virtual void Leave(bool has_failed) = 0;
};

// Engine runs one group's collectives, one after the other in the order of
// Start and Enter. Run executes the collective on the calling thread: that
// saves waking two threads, which takes longer than a small collective. Start
// hands it to the executor, a thread of the group that the first Start creates.
// The watchdog, which enforces deadlines and monitors peers, is a task of a
// thread that all groups share. A group that fails closes its connections
// before its works complete. Sends and receives do not queue behind
// collectives.
class Engine {
 public:
  Engine(std::string group_name, std::unique_ptr<Transport> transport)
      : Engine(std::move(group_name), std::move(transport), Unserved()) {
    Serve();
  }

  // Runs collectives by `shortcut` from the next one on. Call it before the
  // group is handed out, while nothing runs.
  void SetShortcut(std::unique_ptr<Shortcut> shortcut);

  // Lets sends and receives also use the mailbox that `make` returns, for the
  // peers that it reaches. Call it when SetShortcut may be called.
  void SetMail(PointToPoint::MailMaker make, bool is_crowded) {
    point_to_point_->SetMail(std::move(make), {.is_crowded = is_crowded});
  }

  // Calls Stop unless it was called.
  ~Engine();

  // Valid until Stop.
  Transport& transport() { return *transport_; }

  // See Backend.
  std::shared_ptr<Work> Start(const Collective& collective);
  std::unique_ptr<Backend::Prepared> Prepare(const Collective& collective);
  Ticket Enter(const Collective& collective);
  Completion Run(const Collective& collective, Backend::Prepared* prepared,
                 const Ticket& ticket);
  void Abort(const Status& cause);

  // Enter and Run, for a step of the library itself.
  Status RunStep(const Collective& step);

  // Aborts because the running collective `failed` with `failure`. For a
  // shortcut that has to end the waits of another of its threads. From any
  // thread.
  void Fail(const Collective& failed, const Status& failure);

  // Aborts, and returns when all works are complete, the threads have ended and
  // the connections are closed.
  void Stop();

 private:
  // Without the watchdog. Serve is separate, so that the destructor runs if no
  // thread can be started.
  struct Unserved {};
  Engine(std::string group_name, std::unique_ptr<Transport> transport,
         Unserved);
  void Serve();

  class QueuedWork;
  struct Job {
    const Collective* collective = nullptr;
    // The work of the collective; null if its caller runs it.
    std::shared_ptr<QueuedWork> work = nullptr;
    uint64_t number = 0;
  };

  std::shared_ptr<Work> StartPointToPoint(const Collective& collective);
  // Numbers and queues `job`. Returns true if the watchdog must be woken.
  bool Enqueue(Job job) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the executor unless it exists. Errors: kResourceExhausted.
  Status NeedExecutor() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunExecutor();
  // The watchdog's step.
  Instant Look() MUSTER_LOCKS_EXCLUDED(mutex_);
  // Closes the transport of a group that was aborted while nothing runs. Uses a
  // separate thread, because closing may block.
  void CloseIdle() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs the first job, which is the executor's. Releases the lock meanwhile.
  void RunFirst() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the job `number` is the first and may run, and marks it as
  // running. Returns the reason why it may not begin, or OK.
  Status AwaitTurn(uint64_t number) MUSTER_LOCKS_EXCLUDED(mutex_);
  // Removes the first job, which is running and ends with `status`. Completes
  // its `work` if that is not null. `has_begun`: another rank may have seen it
  // begin.
  void EndFirst(QueuedWork* work, const Status& status, bool has_begun)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  // Runs `collective` now. Converts exceptions to a status, here.
  [[gnu::always_inline]] inline Status RunNow(const Collective& collective,
                                              Backend::Prepared* prepared);
  // By the shortcut or the connections.
  [[gnu::always_inline]] inline Status Move(const Collective& collective,
                                            Backend::Prepared* prepared);
  Status RunUserReduction(const Collective& collective);
  // Calls Fail for a collective that was running. Returns the group's error.
  Status FailNow(const Collective& collective, const Status& failure);
  Status RunOnConnections(const Collective& collective);
  // Sends goodbyes and closes the connections of a group that has failed, once.
  // No other thread may run a collective. Releases the lock meanwhile.
  // `cuts_off`: this rank has begun a collective, and not finished it.
  void CloseTransport(bool cuts_off) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The time of the watchdog's next check. Deadlines only make it punctual,
  // here and in Start: it checks each within kLookPeriod anyway.
  Instant NextLook(Instant now) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The reason why the group has failed by `now`, or OK. Releases the lock
  // meanwhile.
  Status FindFailure(Instant now) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether anything started is not complete.
  bool IsBusy() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status MakeTimeoutError(const Collective& collective) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant until Stop.
  const std::string group_name_;
  std::unique_ptr<Transport> transport_;

  // Used by the thread that runs a collective.
  Workspace workspace_;
  std::unique_ptr<Shortcut> shortcut_;
  UserReduction user_reduction_;

  // Runs sends and receives on its own threads.
  std::shared_ptr<PointToPoint> point_to_point_;

  Mutex mutex_;
  // Wakes the executor, callers of Run that wait for their turn, and Stop,
  // which waits for the running collective.
  CondVar turn_;
  // The first job is running if `running_`.
  std::deque<Job> jobs_ MUSTER_GUARDED_BY(mutex_);
  bool running_ MUSTER_GUARDED_BY(mutex_) = false;
  // The number of jobs queued so far, and at the watchdog's last check.
  uint64_t started_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t seen_started_ MUSTER_GUARDED_BY(mutex_) = 0;
  Status abort_cause_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  // CloseTransport was called.
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  // The collective and time in which the watchdog first saw a peer gone.
  FailedCall gone_noticed_in_ MUSTER_GUARDED_BY(mutex_);
  Instant gone_noticed_at_ MUSTER_GUARDED_BY(mutex_);
  // The time of the watchdog's next check unless it is woken; max(): never.
  Instant next_look_ MUSTER_GUARDED_BY(mutex_) = Instant::max();

  std::thread executor_;
  std::thread closer_;
  // Empty until Serve.
  std::optional<SharedThread::Task> watchdog_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_ENGINE_ENGINE_H_
