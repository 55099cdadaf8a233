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
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane {

// A running send or receive.
struct PeerCall {
  bool sends = false;
  uint64_t number = 0;  // among the sends and receives of the group, from 1
  int peer = 0;         // or kAnyPeer
};

// The progress of one rank in one group. Heartbeats carry it; hang diagnosis
// compares it.
struct Progress {
  std::string group_name = {};
  // Sequence numbers; 0 is "none yet". Sends and receives do not count: they
  // differ from rank to rank.
  uint64_t last_enqueued = 0;
  uint64_t last_completed = 0;
  // The oldest running collective; if there is none, the oldest running send or
  // receive; empty if there is neither.
  std::string current = {};
  // Set if `current` is a send or a receive.
  std::optional<PeerCall> peer_call = std::nullopt;
  // The ArgumentsHash of `current` if that is a collective.
  std::optional<uint64_t> arguments_hash = std::nullopt;
  // The time at which `current` became the oldest one or, if it is empty,
  // became empty.
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
  // The timeout of a collective that has none.
  std::chrono::milliseconds default_timeout = std::chrono::minutes(30);
};

// A collective that Communicator::Prepare has checked, to be run again and
// again. It may be destroyed before or after its communicator, on any thread,
// but not while Communicator::Run runs it.
class PreparedCollective {
 public:
  explicit PreparedCollective(Collective arguments)
      : arguments_(std::move(arguments)), run_(arguments_) {
    OpaqueToBytes(run_);
  }

  const Collective& arguments() const { return arguments_; }
  // The arguments, with the number and times of the last run. Not while another
  // one may begin.
  const Collective& last_run() const { return run_; }

 private:
  friend class Communicator;

  const Collective arguments_;
  // Null if the backend has prepared nothing.
  std::unique_ptr<Backend::Prepared> of_backend_;
  // Number and times change under the communicator's lock while nothing runs.
  Collective run_;
  // Set under the communicator's lock.
  std::atomic<bool> is_running_{false};
};

// Communicator is one rank's end of one group. It numbers, validates and starts
// collectives, tracks their progress, and makes a failure final: the first
// failed collective, or Abort, poisons the group, and every later call fails
// with the same error.
//
// Thread-safe. Ranks must start the same collectives in the same order, so a
// program that calls it from several threads must order the calls itself. Sends
// and receives are not ordered with collectives. May be destroyed only after
// every call has returned.
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

  // Runs `collective`, waits for its end and returns its status. Quicker than
  // Start(...)->Wait(). Sets the fields that Communicator fills in.
  Status Run(Collective& collective);
  Status Run(Collective&& collective) { return Run(collective); }

  // Checks `collective`, which is no send or receive, and finds out once what
  // its runs need. Its tensors must stay where they are until the result is
  // destroyed. Sends nothing and uses no number.
  // Errors: those of Start.
  StatusOr<std::unique_ptr<PreparedCollective>> Prepare(Collective collective);

  // As Run and Start of a collective with the arguments of `prepared`, which
  // this communicator has made. One run at a time: others are refused, as for a
  // bad argument. Run is quicker than for a collective that is not prepared.
  Status Run(PreparedCollective& prepared);
  std::shared_ptr<Work> Start(std::shared_ptr<PreparedCollective> prepared);

  // As Start for each of `collectives`, which are all collectives or all sends
  // and receives. They begin as one batch if the backend supports that.
  std::vector<std::shared_ptr<Work>> StartTogether(
      std::vector<Collective> collectives);

  // As Backend::Split, ordered with the collectives by this call.
  std::shared_ptr<ParentHandle> Split(const SplitOptions& options);

  // As Backend::AllocateSymmetric. Any failure poisons the group, except
  // kUnimplemented and kResourceExhausted, which all ranks get alike.
  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options);

  // As Start of a `collective` whose arguments the caller has found to be bad
  // (`why`). Returns the error.
  Status Refuse(Collective collective, const Status& why);

  // Returns the error that Start would give for bad arguments, without the
  // label in front of the text; OK if they are good.
  Status Check(const Collective& collective) const;

  // Fails every running and every later call with `cause`. Does nothing if the
  // group is poisoned. Does not block.
  void Abort(Status cause);

  // Aborts the running calls. Returns when their handles are complete, the
  // calls have left the backend, and the backend is destroyed. Later calls fail
  // (kCancelled).
  void Shutdown();

  // OK, or the error that poisoned the group.
  Status status() const;

  Progress progress();

  // The number of this rank's last collective, also if it was refused.
  uint64_t last_enqueued() const;

  const std::string& group_name() const { return options_.group_name; }
  int rank() const { return options_.rank; }
  int world_size() const { return options_.world_size; }
  const std::string& backend_name() const { return backend_name_; }
  size_t fusable_bytes() const { return fusable_bytes_; }
  // Empty after Shutdown.
  LastRun last_run(DeviceType device) const;

 private:
  // A running collective. `collective` is set if a call of Run waits for it;
  // `work` if Start has started it, and describes it then.
  struct Running {
    uint64_t sequence = 0;
    const Collective* collective = nullptr;
    std::shared_ptr<Work> work = nullptr;
    // Set if there is no `collective`.
    uint64_t arguments_hash = 0;
  };

  using Works = absl::InlinedVector<std::shared_ptr<Work>, 4>;

  struct RunningPeerCall {
    std::string description;
    Instant started;
    PeerCall call;
  };

  // The reason why a collective does not start.
  struct Refusal {
    Status why;
    // True: its arguments are bad. False: the group is poisoned.
    bool by_arguments = false;
  };

  // Keeps the backend alive until the reference is destroyed. Null after
  // Shutdown.
  class BackendRef;

  // Sets the number, start and deadline of `collective`.
  inline void Number(Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Numbers `collective` and returns a Refusal with the error if it may not
  // run. Otherwise it counts as running from now on. `waits`: a call of Run
  // waits for it. `prepared` is null if the collective is not prepared.
  Refusal Enter(Collective& collective, bool waits,
                const PreparedCollective* prepared = nullptr)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A collective that a call of Run runs on the backend.
  struct Entered {
    Ticket ticket;
    // Null after a refusal. The caller is one of the backend's holders.
    Backend* backend = nullptr;
  };
  // Passes to the backend a collective that Enter has accepted for a call of
  // Run.
  inline Entered EnterBackend(const Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs it. `prepared`: see Backend::Run.
  inline Status RunEntered(const Collective& collective,
                           Backend::Prepared* prepared, const Entered& entered);
  // The error of a run of `prepared`, which runs already.
  Status StillRuns(const PreparedCollective& prepared) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The error of arguments that are bad, or of a prepared collective that runs.
  Status FindBad(const Collective& collective,
                 const PreparedCollective* prepared) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The part of Start for one collective; `prepared` may be null.
  std::shared_ptr<Work> StartOne(Collective collective,
                                 std::shared_ptr<PreparedCollective> prepared);
  void AddPeerCall(const Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  inline void AddRunning(const Collective& collective, bool waits)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // AddRunning, for a collective that does not go into first_running_.
  void AddNotFirst(const Collective& collective, bool waits)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts on the backend a collective that Enter has accepted.
  std::shared_ptr<Work> StartEntered(const Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the caller's error and tells the backend of the refusal.
  Status MakeError(const Collective& collective, const Refusal& refusal);
  // Makes the handle of a collective that was refused or, if not, that the
  // backend has started as `work`.
  std::shared_ptr<Work> MakeHandle(const Collective& collective,
                                   const Refusal& refusal,
                                   std::shared_ptr<Work> work);
  void Completed(uint64_t sequence, const Status& status, Instant at,
                 bool waits);
  // Removes a running collective. If `ok`, it counts as completed.
  inline void RemoveRunning(uint64_t sequence, bool ok, Instant at)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // RemoveRunning, for an entry of running_.
  void RemoveNotFirst(uint64_t sequence, Instant at)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Called when a collective of Start completes. A success is counted later, by
  // the next call of TakeEnded: otherwise the completing thread and the threads
  // that start more collectives would contend for mutex_.
  void StartedCompleted(uint64_t sequence, const Status& status);
  // Counts those that have succeeded. `all`: also those behind one that still
  // runs.
  void TakeEnded(bool all) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PointToPointCompleted(uint64_t sequence, const Status& status);
  // Poisons the group if it is idle and not poisoned. Returns whether it did.
  bool EndIdle(const Status& cause);
  inline void LetGo() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction.
  const CommunicatorOptions options_;
  const std::string backend_name_;
  const size_t fusable_bytes_;

  // Held while a collective is numbered and passed to Backend::Start or Enter,
  // so that the backend sees collectives in the order of their numbers. Never
  // held in a call of the backend that may wait or call back.
  mutable Mutex mutex_;
  uint64_t last_enqueued_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t last_completed_ MUSTER_GUARDED_BY(mutex_) = 0;
  // The running collectives, by sequence. The first one may be in
  // first_running_ instead, if a call of Run waits for it: to insert and erase
  // an entry takes longer than much of a small collective.
  const Collective* first_running_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  std::deque<Running> running_ MUSTER_GUARDED_BY(mutex_);
  // Works that TakeEnded has counted; the next call frees them without the
  // lock. And the time at which the last work of Start ended.
  Works ended_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<Instant> ended_at_{};
  Instant since_ MUSTER_GUARDED_BY(mutex_);
  // Sends and receives, numbered apart.
  uint64_t last_point_to_point_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, RunningPeerCall> point_to_point_ MUSTER_GUARDED_BY(mutex_);
  Status poison_ MUSTER_GUARDED_BY(mutex_);

  // The number of calls that use the backend without the lock. `ends_`:
  // Shutdown waits until there are none.
  mutable int holders_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool ends_ MUSTER_GUARDED_BY(mutex_) = false;
  mutable CondVar let_go_;
  // Null after Shutdown. Last member: its threads complete works, whose
  // callbacks use the members above.
  std::unique_ptr<Backend> backend_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_COMMUNICATOR_H_
