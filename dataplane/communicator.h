#ifndef MUSTER_DATAPLANE_COMMUNICATOR_H_
#define MUSTER_DATAPLANE_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/backend.h"
#include "dataplane/biased_mutex.h"
#include "dataplane/collective.h"
#include "dataplane/plans.h"
#include "dataplane/releasable_lock.h"
#include "dataplane/work.h"

namespace muster::dataplane {

// A send or a receive that runs.
struct PeerCall {
  bool sends = false;
  uint64_t number = 0;  // among the sends and receives of the group, from 1
  int peer = 0;         // or kAnyPeer
};

// How far one rank has come in one group: what heartbeats carry and hang
// diagnosis compares.
struct Progress {
  std::string group_name = {};
  // Sequence numbers; 0 is "none yet". Sends and receives do not count: they
  // differ from rank to rank.
  uint64_t last_enqueued = 0;
  uint64_t last_completed = 0;
  // The oldest collective that has not completed; when there is none, the
  // oldest send or receive; empty when there is none of both.
  std::string current = {};
  // When that is a send or a receive.
  std::optional<PeerCall> peer_call = std::nullopt;
  // When it is a collective: its ArgumentsHash.
  std::optional<uint64_t> arguments_hash = std::nullopt;
  // Since when `current` is the oldest one, or since when there is none.
  Instant since = {};
};

// A hash of what all ranks must pass alike: what Fingerprint::common has, but
// without texts, because Start makes one for every collective. The same in
// every process, also of another version: heartbeats carry it. `collective` is
// valid.
uint64_t ArgumentsHash(const Collective& collective);

struct CommunicatorOptions {
  std::string group_name = {};
  int rank = 0;
  int world_size = 1;
  // Of a collective that names none.
  std::chrono::milliseconds default_timeout = std::chrono::minutes(30);
};

// Communicator is one rank's end of one group. It numbers, validates and
// starts collectives, keeps their progress, and makes a failure final: the
// first failed collective, or Abort, poisons the group, and everything after
// it fails with that same error.
//
// Thread-safe, but ranks must start the same collectives in the same order, so
// callers on several threads order themselves. Sends and receives have no order
// with those. Destroyed when no call is in it any more, not even about to
// return.
class Communicator {
 public:
  Communicator(CommunicatorOptions options, std::unique_ptr<Backend> backend);
  ~Communicator() { Shutdown(); }

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Starts `collective` and returns its handle, never null. A bad argument
  // completes the handle with kInvalidArgument or kUnimplemented and leaves
  // the group as it was: nothing was sent.
  std::shared_ptr<Work> Start(Collective collective);

  // The same of a collective for whose end the caller waits, with its status:
  // quicker than Start(...)->Wait(). Fills in what is Communicator's of it.
  Status Run(Collective& collective) MUSTER_NO_THREAD_SAFETY_ANALYSIS;
  Status Run(Collective&& collective) { return Run(collective); }

  // The same, no send or receive, and quicker still for what is run again and
  // again. `began` is set to when it was started.
  Status Run(const CollectiveView& view,
             Instant& began) MUSTER_NO_THREAD_SAFETY_ANALYSIS;

  // As Start of several, all collectives or all sends and receives, that begin
  // as one if the backend knows how.
  std::vector<std::shared_ptr<Work>> StartTogether(
      std::vector<Collective> collectives);

  // As Backend::Split, between the collectives before it and those after it.
  std::shared_ptr<ParentHandle> Split(const SplitOptions& options);

  // As Backend::AllocateSymmetric; a failure but kUnimplemented and
  // kResourceExhausted, which all ranks have alike, poisons the group.
  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options);

  // What Start would make of its arguments: OK, or that error, without its
  // head.
  Status Check(const Collective& collective) const;

  // Fails everything that is running and everything to come with `cause`.
  // Without effect when the group is poisoned already. Does not block.
  void Abort(Status cause) MUSTER_NO_THREAD_SAFETY_ANALYSIS;

  // Aborts what is running, and returns when its handles are complete, its
  // callers gone and the backend destroyed. Everything later fails
  // (kCancelled).
  void Shutdown();

  // OK, or the error that poisoned the group.
  Status status() const;

  Progress progress();

  // The number of the last collective that was started here.
  uint64_t last_enqueued() const;

  const std::string& group_name() const { return options_.group_name; }
  int rank() const { return options_.rank; }
  int world_size() const { return options_.world_size; }
  const std::string& backend_name() const { return backend_name_; }
  size_t fusable_bytes() const { return fusable_bytes_; }
  // Of a group that was shut down: nothing.
  LastRun last_run(DeviceType device) const;

 private:
  // A collective that runs: of Run, or what Start has started, which describes
  // itself.
  struct Running {
    uint64_t sequence = 0;
    const Collective* collective = nullptr;
    std::shared_ptr<Work> work = nullptr;
    // Where there is no `collective`.
    uint64_t arguments_hash = 0;
  };

  using Works = absl::InlinedVector<std::shared_ptr<Work>, 4>;

  struct RunningPeerCall {
    std::string description;
    Instant started;
    PeerCall call;
  };

  // Why a collective does not start.
  struct Refusal {
    Status why;
    // Its own arguments are bad; else the group is over.
    bool by_arguments = false;
  };

  // The backend, which is there until this ends. Null: it is gone.
  class BackendRef;

  // Numbers `collective` and says when it began.
  inline void Number(Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: there is none that may run.
  [[gnu::always_inline]] inline Collective* FindPlanned(
      const CollectiveView& view) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it may run with its tensors where they are now. `looks`: the
  // backend is asked, too.
  bool IsGood(const Collective& planned, bool looks)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rest of Run, where there is no plan.
  Status RunUnplanned(const CollectiveView& view, Instant& began);
  // It has succeeded without a plan.
  void Note(const Collective& collective);
  // Has the backend run what has entered and is waited for.
  [[gnu::always_inline]] inline Status RunEntered(const Collective& collective,
                                                  ReleasableLock& order)
      MUSTER_NO_THREAD_SAFETY_ANALYSIS;
  // The end of what it has run, in a handler: it has thrown.
  void Threw(const Collective& collective, uint64_t sequence,
             ReleasableLock& order) MUSTER_NO_THREAD_SAFETY_ANALYSIS;
  // Numbers `collective`, and says why it may not run; or it is one of those
  // that do from now on, and its caller waits for it, and holds the backend, or
  // not.
  Refusal Enter(Collective& collective, bool waits)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPeerCall(const Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  inline void AddRunning(const Collective& collective, bool waits)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same of what first_running_ is not for.
  void AddNotFirst(const Collective& collective, bool waits)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the backend start what has entered.
  std::shared_ptr<Work> StartEntered(const Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the caller is told; the backend hears of it, too.
  Status ErrorOf(const Collective& collective, const Refusal& refusal);
  // The handle of one that has entered, and that the backend has started if it
  // was not refused.
  std::shared_ptr<Work> HandleOf(const Collective& collective,
                                 const Refusal& refusal,
                                 std::shared_ptr<Work> work);
  void Completed(uint64_t sequence, const Status& status, Instant at,
                 bool waits);
  // It runs no more, and if it is `ok`, counts as completed.
  inline void RemoveRunning(uint64_t sequence, bool ok, Instant at)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same of one in running_.
  void RemoveNotFirst(uint64_t sequence, Instant at)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One that Start has started is complete. If it has succeeded, that is
  // counted by whoever looks next (TakeEnded): the thread that completes it
  // would wait for those that start more, and they for it.
  void StartedCompleted(uint64_t sequence, const Status& status);
  // Counts those that have succeeded. `all`: also behind others that run yet.
  void TakeEnded(bool all) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PointToPointCompleted(uint64_t sequence, const Status& status);
  // Poisons the group if nobody uses it and nothing has yet; whether it has.
  bool EndIdle(const Status& cause);
  inline void LetGo() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction.
  const CommunicatorOptions options_;
  const std::string backend_name_;
  const size_t fusable_bytes_;

  // Held over numbering and Backend::Start together, or the beginning of
  // Backend::Run, so that the backend sees collectives in the order of their
  // numbers; and to the end of a small collective that does not wait. But not
  // over anything of the backend that may wait, or that may call back.
  mutable BiasedMutex mutex_;
  uint64_t last_enqueued_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t last_completed_ MUSTER_GUARDED_BY(mutex_) = 0;
  // What runs, in the order of their sequences. The first of them may be here,
  // of a caller of Run: to write and erase an entry takes longer than much of a
  // small collective.
  const Collective* first_running_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  std::deque<Running> running_ MUSTER_GUARDED_BY(mutex_);
  // What was counted of them, for whoever comes next to give its memory back
  // without the lock; and when the last one of Start's ended.
  Works ended_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<Instant> ended_at_{};
  Instant since_ MUSTER_GUARDED_BY(mutex_);
  // Sends and receives, numbered apart.
  uint64_t last_point_to_point_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, RunningPeerCall> point_to_point_ MUSTER_GUARDED_BY(mutex_);
  Status poison_ MUSTER_GUARDED_BY(mutex_);
  Plans plans_ MUSTER_GUARDED_BY(mutex_);

  // How many use the backend without the lock; whether Shutdown waits until
  // nobody does.
  mutable int holders_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool ends_ MUSTER_GUARDED_BY(mutex_) = false;
  mutable CondVar let_go_;
  // Null after Shutdown. Its threads complete works, whose callbacks use what
  // stands above.
  std::unique_ptr<Backend> backend_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_COMMUNICATOR_H_
