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
#include "base/clock.h"
#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cuda/api.h"
#include "dataplane/cuda/device_work.h"
#include "dataplane/nccl/aborter.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/caller.h"
#include "dataplane/nccl/comm_task.h"
#include "dataplane/nccl/issue.h"
#include "dataplane/nccl/platform.h"

namespace muster::dataplane::nccl {

// A collective, send or receive in progress.
struct Entry {
  std::shared_ptr<cuda::DeviceWork> work;
  const Collective& collective() const { return work->collective(); }
  // It is the stream's first collective, second, ...: the same on all ranks. 0
  // of a send or a receive.
  uint64_t number = 0;
  // When it was added.
  Instant since;
};

// Entries that begin and end together.
using Entries = absl::InlinedVector<Entry, 1>;

// What has ended together, and as what it is to be completed.
struct Ended {
  Entries entries;
  Status status;
  // The supply's again, when nobody looks at them any more: after Complete.
  cuda::Event ready = nullptr;
  cuda::Event end = nullptr;

  void Complete();
};

// Events that the streams of a group share on its device. Not thread-safe.
class EventPool {
 public:
  explicit EventPool(const Platform& platform) : platform_(platform) {}

  // `event` is the caller's until it is given back.
  Status TakeEvent(cuda::Event& event);
  void GiveBack(cuda::Event event);
  // Its events, when it is complete.
  void GiveBack(Ended ended);

  // Of those that were complete, to free their memory: who starts more is to
  // do that, as he has allocated it. What another thread frees meanwhile takes
  // more than half of the time that a start takes. Until then as many stay as
  // were on their way at once.
  using Spent = std::array<Ended, 2>;
  Spent TakeSpent();

  // 4 bytes on the device, of nobody's: what a barrier reduces. Made by
  // MakeScratch.
  Status MakeScratch();
  void* scratch() const { return scratch_; }

  // When no stream uses anything of it any more. To free memory waits for all
  // that the device does: if something there `is_stuck`, that is left.
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
    // Of its unique id in the store.
    std::string key;
    // Of the communicator.
    int rank = 0;
    int size = 1;
    int device = 0;
    // For sends of its rank 0 to its rank 1 alone.
    bool is_pair = false;
    bool is_high_priority = false;
    bool wants_copy_engines = false;
    bool is_blocking = false;
  };

  // `platform` and `supply` outlive it.
  CommStream(const Platform& platform, EventPool& supply, Options options)
      : platform_(platform), supply_(supply), options_(std::move(options)) {}

  // Makes the stream; the first call, on the current device.
  Status Open();

  const Options& options() const { return options_; }

  // That makes its communicator's calls; null: this one does, as they do not
  // block.
  const std::shared_ptr<Caller>& caller() const { return caller_; }

  void SetComm(Comm comm) { comm_ = comm; }

  // The collective of `work` is to begin after what is on the current stream,
  // and with what was added before if that is `open`, as this one is for those
  // to come.
  Status Add(std::shared_ptr<cuda::DeviceWork> work, bool open);
  // What was added last is open no more.
  void Close();
  // The communicator, if there is one and nothing is on its way there: it is
  // the caller's then. Else null.
  Comm TakeComm();
  // To be done when all that was added before has ended.
  void Add(std::shared_ptr<CommTask> task);

  // Gives NCCL as much as can be given now. As long as NCCL is about to put
  // something into the stream it waits for that, but for a moment only.
  Status GiveWaiting();

  // Whether NCCL has taken what it was given, and, if `asks`, whether it has an
  // error. Does nothing while there is no communicator.
  Status Look(bool asks);

  // The oldest entry; null: there is none. Good until something is done with
  // the stream.
  const Entry* Oldest() const;
  // One whose deadline has passed. Looks at them only when the earliest has.
  const Entry* Overdue(Instant now);

  // For people.
  std::map<std::string, std::string> Texts() const;

  // How far the end of the group has come.
  enum class End {
    kNo,
    // Its communicators are to be aborted.
    kBegun,
    // They were: NCCL puts nothing into a stream any more.
    kAborted,
    // Something is stuck: its stream waits for somebody else's, or an abort for
    // somebody else's collective.
    kGivesUp
  };
  // Takes what has ended. After the end of the group that is also what has not
  // begun, and then what NCCL was in progress with, and what is stuck. `why` is
  // the group's error; it is set if CUDA has one.
  void TakeEnded(End end, Status& why, std::vector<Ended>& ended);

  bool IsIdle() const { return running_.empty() && waiting_.empty(); }
  // Whether nothing but tasks is on its way.
  bool HasTasksAlone() const;

  // Begins to part from the other ranks; false: nothing to part from.
  bool BeginToPart();
  // Whether it has begun to and is done with it, or cannot be.
  bool HasParted();
  // The communicator, for the caller to destroy, if it has parted in peace.
  Comm EndParting();

  // Adds the communicator, if there is one, to those to abort: nothing is
  // called of it here any more.
  void GiveUp(Aborter::Comms& comms);

  // Gives its stream back, unless a call is left alone with it. Nothing is
  // called any more.
  void Free();

 private:
  // What begins together: one collective, several as one group of NCCL, or an
  // task.
  struct Batch {
    Entries entries;
    std::shared_ptr<CommTask> task;
    // Of collectives: where they go, what they are to begin after (null: what
    // is there), and their end.
    cuda::Stream stream = nullptr;
    cuda::Event ready = nullptr;
    cuda::Event end = nullptr;
    // More comes to it.
    bool open = false;
  };

  Status Cuda(cuda::Error error, absl::string_view what) const;
  Status Nccl(Result result, absl::string_view what) const;
  static Status IssueAll(const Entries& entries, const Target& target);
  Target TargetOn(const Platform& platform, cuda::Stream stream) const;
  // Whether the caller is in a call: nobody else uses the communicator then.
  bool IsCalling() const {
    return caller_ != nullptr && !caller_->End().has_value();
  }
  bool CanGive() const;
  // Whether the collective that is added next is in a stream when the caller
  // goes on, and may be in his.
  bool CanRunInCallersStream(const Collective& collective) const;
  Status Give();
  Status CallTask(const Batch& batch);
  Status CallEntries(const Batch& batch);
  Status AwaitGiven();
  Status LookAfter();
  Status StateOf(Result& state);
  // How many of the first that run have ended.
  size_t CountEnded() const;
  void Take(Batch& batch, const Status& why, std::vector<Ended>& ended);

  const Platform& platform_;
  EventPool& supply_;
  const Options options_;

  std::shared_ptr<Caller> caller_;
  cuda::Stream stream_ = nullptr;
  bool stream_is_left_ = false;
  Comm comm_ = nullptr;  // null until it is made
  std::deque<Batch> waiting_;
  // A vector, which keeps its memory: what one thread frees of what another one
  // has allocated costs both of them more than to move what is left.
  std::vector<Batch> running_;
  // NCCL, or the caller, has yet to put the last one of `running_` into the
  // stream: nothing else may be done with the communicator until it has.
  bool in_progress_ = false;
  uint64_t added_ = 0;
  uint64_t ended_ = 0;
  // Of those added, collectives.
  uint64_t numbered_ = 0;
  // Nothing on its way has an earlier one.
  Instant first_deadline_ = Instant::max();
  // What NCCL has said of the communicator.
  Result last_state_ = kSuccess;
  bool was_ended_ = false;
  // What NCCL has said of parting.
  Result parting_ = kInProgress;
};

// Those of a group, by their keys.
using CommStreams = std::map<std::string, std::unique_ptr<CommStream>>;

bool AreIdle(const CommStreams& streams);
// Whether something is on its way, and nothing but tasks.
bool RunTasksAlone(const CommStreams& streams);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_COMM_STREAM_H_
