#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_POINT_TO_POINT_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_POINT_TO_POINT_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "dataplane/backends/gloo/channel.h"
#include "dataplane/backends/gloo/mesh.h"
#include "dataplane/collective.h"
#include "dataplane/instant.h"
#include "dataplane/mutex.h"
#include "dataplane/work.h"

namespace muster::dataplane::gloo_internal {

// PointToPoint runs the sends and receives of one group on one rank, beside the
// collectives.
//
// Between two ranks there is a channel in each direction, for messages of
// bounded size. What sends give is matched with what receives want in the order
// in which it comes, by peer and tag. A small tensor travels in its message; as
// many as kEagerWindow may lie unclaimed on the receiver. For a large one the
// message is a request; once a receive claims it, and has announced exactly its
// size, the receiver clears the sender to send, from tensor to tensor.
//
//   sender                      receiver
//   kEager + payload     ->     copied to the tensor, or kept
//                        <-     kCredit, for every few that were claimed
//
//   kRequest             ->     waits until it is claimed
//                        <-     kClear
//   the tensor           ->
//   kDone                ->     which nobody has waited for until now
//                        <-     kTaken
//
// Where the receiver reads the sender's memory (Mesh::MemoryOf), the request
// says where the tensor is there, and the receiver copies it:
//
//   kRequest             ->     waits until it is claimed
//                        <-     kReads, in case that it leaves after it
//                               the tensor; if it cannot be read: kClear
//                        <-     kTaken
//
// Thread-safe. Its threads are those of the channels, which are opened when
// this rank first sends to or receives from a peer.
class PointToPoint {
 public:
  // `fail` ends the group; it may be called from any thread, without locks.
  PointToPoint(std::string group_name, Mesh& mesh,
               std::function<void(const absl::Status&)> fail);

  // After Close, unless nothing was started.
  ~PointToPoint() = default;

  // Of a kSend or kRecv. Does not block.
  std::shared_ptr<Work> Start(const Collective& collective);

  // The oldest that is not complete: its number and label.
  struct Oldest {
    uint64_t sequence;
    std::string label;
  };
  std::optional<Oldest> oldest() const;

  // When the first of those that run has to be complete.
  Instant FirstDeadline() const;

  // The error of one whose deadline has passed at `now`, or OK.
  absl::Status FindTimeout(Instant now) const;

  // Ends the threads. The mesh is aborted.
  void Quiesce();

  // Completes what is left with `cause`. The mesh is closed.
  void Close(const absl::Status& cause);

 private:
  struct Operation {
    Collective collective;
    std::shared_ptr<PromisedWork> work;
    // A send whose tensor is posted, or is being read: all that it waits for is
    // to hear that it has left, or was taken.
    bool is_leaving = false;
    // Of a receive that has been matched: who sends; otherwise as asked for.
    int peer = kAnyPeer;
  };
  using OperationPtr = std::shared_ptr<Operation>;

  // Something that came and that no receive has claimed yet.
  struct Unclaimed {
    int peer;
    Message message;
    std::vector<std::byte> payload;
  };

  // A tensor that is on its way to this rank.
  struct Arriving {
    OperationPtr operation;
    std::unique_ptr<Buffer> buffer;
  };

  struct Peer {
    std::unique_ptr<Channel> channel;
    // How many more small messages may be sent without a request.
    uint64_t credit = 0;
    // How many small ones were claimed since it was last told.
    uint64_t claimed = 0;
    uint64_t last_id = 0;
    // Large ones that are not taken yet, by id.
    std::map<uint64_t, OperationPtr> requests;
    // Tensors that were cleared to come, by the peer's id.
    std::map<uint64_t, Arriving> arriving;
    // How it went, once its messages have ended.
    absl::Status ended;
  };

  // A tensor that this rank reads in its sender's memory.
  struct Reading {
    OperationPtr operation;
    int peer;
    Message request;
  };

  // What has to be done without the lock.
  struct Outcome {
    std::vector<OperationPtr> done = {};
    // By a thread of the peer's channel.
    std::vector<Reading> readings = {};
    absl::Status failure = absl::OkStatus();
  };

  std::string LabelOf(const Collective& collective) const;

  void StartSend(const OperationPtr& operation, Outcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartReceive(const OperationPtr& operation, Outcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Peer& Open(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Called by the threads of the channels.
  void Received(int peer, const Message& message, const std::byte* payload);
  void Sent(uint64_t sequence);
  void Ended(int peer, const absl::Status& how);

  void TakeOffer(int peer, const Message& message, const std::byte* payload,
                 Outcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeClear(int peer, const Message& message, Outcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeDone(int peer, const Message& message, Outcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeTaken(int peer, const Message& message, Outcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeReads(int peer, const Message& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Joins what came with the receive that wants it.
  void Match(const OperationPtr& operation, int peer, const Message& message,
             const std::byte* payload, Outcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckFits(const Operation& operation, int peer,
                         const Message& message) const;
  // Announces the tensor of `request` and clears the peer to send it.
  absl::Status Clear(const OperationPtr& operation, int peer,
                     const Message& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the peer `type` of its `id`.
  absl::Status Tell(int peer, Message::Type type, uint64_t id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read(const Reading& reading) ABSL_LOCKS_EXCLUDED(mutex_);
  // `operation` is complete.
  void Done(const OperationPtr& operation, Outcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How the peer that an operation needs went, or OK.
  absl::Status LossFor(const Operation& operation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does it, without the lock.
  void Carry(const Outcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const std::string group_name_;
  Mesh& mesh_;
  const std::function<void(const absl::Status&)> fail_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // By rank. Channels last until Close.
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);
  // All that are not complete, by number.
  std::map<uint64_t, OperationPtr> running_ ABSL_GUARDED_BY(mutex_);
  // Receives that nothing has come for, and what no receive has claimed, each
  // in their order.
  std::list<OperationPtr> receives_ ABSL_GUARDED_BY(mutex_);
  std::list<Unclaimed> unclaimed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_POINT_TO_POINT_H_
