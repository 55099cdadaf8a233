// A communicator of the nccl backend with its CUDA stream.

#ifndef MUSTER_DATAPLANE_NCCL_COMM_STREAM_H_
#define MUSTER_DATAPLANE_NCCL_COMM_STREAM_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dataplane/cuda/api.h"
#include "dataplane/cuda/device_work.h"
#include "dataplane/nccl/aborter.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/caller.h"
#include "dataplane/nccl/comm_task.h"
#include "dataplane/nccl/issue.h"
#include "dataplane/nccl/platform.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::nccl {

// A collective, send or receive in progress.
struct Entry {
  std::shared_ptr<cuda::DeviceWork> work;
  const Collective& collective() const { return work->collective(); }
  // Number among the stream's collectives, from 1; the same on all ranks. 0 for
  // a send or receive.
  uint64_t number = 0;
  // The time at which it was added.
  Instant since;
};

// Entries that begin and end together.
using Entries = absl::InlinedVector<Entry, 1>;

// Entries that have ended together, and the status to complete them with.
struct Ended {
  Entries entries;
  Status status;
  // Given back to the EventPool after Complete.
  cuda::Event ready = nullptr;
  cuda::Event end = nullptr;

  void Complete();
};

// Events that the streams of a group share on its device. Not thread-safe.
class EventPool {
 public:
  explicit EventPool(const Platform& platform) : platform_(platform) {}

  // The caller owns `event` until it gives it back.
  Status TakeEvent(cuda::Event& event);
  void GiveBack(cuda::Event event);
  // Takes back the events of completed entries, and keeps the entries.
  void GiveBack(Ended ended);

  // Returns up to two of the completed entries, whose memory the caller frees.
  // A thread that starts a collective calls this, because it has allocated such
  // memory: freeing on another thread meanwhile takes more than half of the
  // time of a start. The pool keeps at most as many as were in progress at
  // once.
  using Spent = std::array<Ended, 2>;
  Spent TakeSpent();

  // 4 bytes on the device, which a barrier reduces. Made by MakeScratch.
  Status MakeScratch();
  void* scratch() const { return scratch_; }

  // Call it when no stream uses the pool any more. Does not free the scratch if
  // `is_stuck`: freeing waits for everything on the device.
  void Free(bool is_stuck);

 private:
  const Platform& platform_;
  std::vector<cuda::Event> events_;
  std::vector<Ended> spent_;
  void* scratch_ = nullptr;
};

// CommStream is a communicator, its stream, and the operations in progress
// there, which run in the order in which they were added. An operation that is
// added before the communicator exists, or while NCCL has not accepted an
// earlier one, waits. A collective that may run in its caller's stream does so
// if it then need not wait: making two streams wait for each other takes three
// CUDA calls, longer than everything else. Not thread-safe. After a call
// returns an error, call GiveUp.
class CommStream {
 public:
  struct Options {
    // The key of its unique id in the store.
    std::string key;
    // This rank, and the number of ranks, in the communicator.
    int rank = 0;
    int size = 1;
    int device = 0;
    // A communicator of two ranks, for sends from rank 0 to rank 1.
    bool is_pair = false;
    bool is_high_priority = false;
    bool wants_copy_engines = false;
    bool is_blocking = false;
  };

  // `platform` and `supply` outlive it.
  CommStream(const Platform& platform, EventPool& supply, Options options)
      : platform_(platform), supply_(supply), options_(std::move(options)) {}

  // Makes the stream on the current device. Must be the first call.
  Status Open();

  const Options& options() const { return options_; }

  // Makes the calls of a blocking communicator; null if it does not block.
  const std::shared_ptr<Caller>& caller() const { return caller_; }

  void SetComm(Comm comm) { comm_ = comm; }

  // Adds a collective, which begins after the work that is now on the current
  // stream. It joins the last batch if that was added `open`; later ones join
  // this batch if this one is `open`.
  Status Add(std::shared_ptr<cuda::DeviceWork> work, bool open);
  // Ends the open batch.
  void Close();
  // Hands the communicator to the caller; null if there is none or something is
  // in progress.
  Comm TakeComm();
  // Adds a task, which runs when everything that was added before has ended.
  void Add(std::shared_ptr<CommTask> task);

  // Gives NCCL as much as possible. Waits a moment, not longer, while NCCL is
  // still enqueuing the last operation.
  Status GiveWaiting();

  // Checks whether NCCL has enqueued the last operation and, if `asks`, whether
  // it has an error. Does nothing while there is no communicator.
  Status Look(bool asks);

  // The oldest entry, or null. Valid until the stream changes.
  const Entry* Oldest() const;
  // An entry whose deadline has passed, or null. Cheap before the first
  // deadline.
  const Entry* Overdue(Instant now);

  // The communicator's state, for people.
  std::map<std::string, std::string> Texts() const;

  // The progress of the group's end.
  enum class End {
    kNo,
    // The group has failed; its communicators will be aborted.
    kBegun,
    // All communicators are aborted: NCCL enqueues nothing any more.
    kAborted,
    // Something is stuck: a stream waits for another group's stream, or an
    // abort for another group's collective.
    kGivesUp
  };
  // Moves the entries that have ended to `ended`. After the group's failure
  // also those that have not begun (kBegun), that NCCL was enqueuing
  // (kAborted), and that are stuck (kGivesUp). `why` is the group's error; set
  // here if CUDA reports one.
  void TakeEnded(End end, Status& why, std::vector<Ended>& ended);

  bool IsIdle() const { return running_.empty() && waiting_.empty(); }
  // Whether only tasks are left.
  bool HasTasksAlone() const;

  // Starts ncclCommFinalize. Returns false if there is nothing to finalize.
  bool BeginToPart();
  // Whether BeginToPart's work is done or has failed.
  bool HasParted();
  // Hands the communicator to the caller, to destroy, if it was finalized; else
  // null.
  Comm EndParting();

  // Adds the communicator, if there is one, to those to abort. This object does
  // not call NCCL any more.
  void GiveUp(Aborter::Comms& comms);

  // Destroys the stream, unless a call that has not returned may still use it.
  // Must be the last call.
  void Free();

 private:
  // A batch: one collective, several that begin together as one NCCL group, or
  // one task.
  struct Batch {
    Entries entries;
    std::shared_ptr<CommTask> task;
    // Collectives only: their stream; the event that they begin after (null:
    // they run in the caller's stream); the event of their end.
    cuda::Stream stream = nullptr;
    cuda::Event ready = nullptr;
    cuda::Event end = nullptr;
    // More entries may join.
    bool open = false;
  };

  Status Cuda(cuda::Error error, absl::string_view what) const;
  Status Nccl(Result result, absl::string_view what) const;
  static Status IssueAll(const Entries& entries, const Target& target);
  Target TargetOn(const Platform& platform, cuda::Stream stream) const;
  // Whether the caller's thread is in a call. No other thread may use the
  // communicator then.
  bool IsCalling() const {
    return caller_ != nullptr && !caller_->End().has_value();
  }
  bool CanGive() const;
  // Whether the next collective may run in its caller's stream: it allows that
  // and would be enqueued before Add's caller goes on.
  bool CanRunInCallersStream(const Collective& collective) const;
  Status Give();
  Status CallTask(const Batch& batch);
  Status CallEntries(const Batch& batch);
  Status AwaitGiven();
  Status LookAfter();
  Status GetState(Result& state);
  // The number of batches at the front of `running_` that have ended.
  size_t CountEnded() const;
  void Take(Batch& batch, const Status& why, std::vector<Ended>& ended);

  const Platform& platform_;
  EventPool& supply_;
  const Options options_;

  std::shared_ptr<Caller> caller_;
  cuda::Stream stream_ = nullptr;
  bool stream_is_left_ = false;
  Comm comm_ = nullptr;  // null until SetComm
  std::deque<Batch> waiting_;
  // A vector, which keeps its memory: if one thread frees what another one has
  // allocated, both lose more time than moving the rest takes.
  std::vector<Batch> running_;
  // NCCL, or the Caller, has yet to enqueue the last batch of `running_`. The
  // communicator must not be used otherwise until then.
  bool in_progress_ = false;
  uint64_t added_ = 0;
  uint64_t ended_ = 0;
  // The number of collectives among the added ones.
  uint64_t numbered_ = 0;
  // No entry in progress has an earlier deadline.
  Instant first_deadline_ = Instant::max();
  // The last state of the communicator.
  Result last_state_ = kSuccess;
  bool was_ended_ = false;
  // The state of the finalization.
  Result parting_ = kInProgress;
};

// The streams of a group, by key.
using CommStreams = std::map<std::string, std::unique_ptr<CommStream>>;

bool AreIdle(const CommStreams& streams);
// Whether something is in progress and all of it is tasks.
bool RunTasksAlone(const CommStreams& streams);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_COMM_STREAM_H_
