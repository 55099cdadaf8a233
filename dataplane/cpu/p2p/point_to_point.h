#ifndef MUSTER_DATAPLANE_CPU_P2P_POINT_TO_POINT_H_
#define MUSTER_DATAPLANE_CPU_P2P_POINT_TO_POINT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/cpu/transport/p2p_connections.h"
#include "dataplane/cpu/transport/shm_mailbox.h"
#include "dataplane/cpu/transport/spin_wait.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/failed_call.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane::cpu {

// PointToPoint runs the sends and receives of one group on one rank, in
// parallel to the collectives.
//
// Messages travel on P2pConnections. Sends are matched with receives by peer
// and tag, in order of arrival. A small tensor is sent at once; up to
// kEagerWindow of these may lie unclaimed at the receiver. For a large tensor a
// request is sent first. When a receive claims it, the receiver clears the
// sender to send, from tensor to tensor.
//
//   sender                      receiver
//   kEager + payload     ->     copied to the tensor, or kept
//                        <-     kCredit, once for several claimed ones
//
//   kRequest             ->     waits until it is claimed
//                        <-     kClear
//   kTensor + payload    ->     arrives in the receive's tensor
//                        <-     kTaken
//
// A send is complete when its tensor may be used again: a small one has then
// left this rank, a large one was taken. If the peer leaves in peace first, a
// send whose tensor has left, or is being read, is complete: the news that it
// was taken may be lost. A send that has not left fails.
//
// If the receiver can read the sender's memory (Transport::FindMemory), the
// request carries the tensor's address, and the receiver copies the tensor:
//
//   kRequest             ->     waits until it is claimed
//                        <-     kReads: begins to read, and may then leave
//                               the tensor; if it cannot be read: kClear
//                        <-     kTaken
//
// Ranks of one host may share a ShmMailbox (SetMail). It carries all messages
// for which it has room, except kTensor, and except a kEager or kRequest while
// an earlier one has not left the connection: a send could complete there while
// an earlier one can still be lost. Messages that arrive on both are ordered by
// their ids.
//
// A rank's sends to itself are matched in the same way, without a connection: a
// small tensor is kept until a receive claims it, and a large one is copied
// from tensor to tensor.
//
// A thread that waits for a send or receive polls the mailbox for a while, so
// it gets messages without another thread. This rank asks its peers to wake it
// only when that thread stops polling, or when the mailbox thread, which polls
// from time to time, finds something running: a thread that wakes up competes
// with polling threads.
//
// Thread-safe. Its threads, started when they are first needed: the progress
// thread of the P2pConnections, which also copies this rank's sends to itself,
// and the mailbox thread, for messages that arrive while no thread polls.
class PointToPoint : public std::enable_shared_from_this<PointToPoint> {
 public:
  // `fail` ends the group; it may be called from any thread, without locks.
  PointToPoint(std::string group_name, Transport& transport,
               std::function<void(const Status&)> fail);

  // Destroy it after Close, unless nothing was started.
  ~PointToPoint() = default;

  struct MailboxOptions {
    // The host has fewer processors than ranks. Waiters then never spin for
    // longer than kSpinTime.
    bool is_crowded = false;
    // How often the mailbox thread polls while sends and receives are started,
    // and how many polls may find nothing before it sleeps until it is woken.
    std::chrono::microseconds look_period{500};
    int idle_polls = 100;
  };

  // Makes the mailbox that the ranks of this host share, or returns null.
  using MailMaker = std::function<std::shared_ptr<ShmMailbox>()>;

  // The first Start calls `make`. Call SetMail before it.
  void SetMail(MailMaker make, const MailboxOptions& options);

  // Starts a kSend or kRecv. Does not block.
  std::shared_ptr<Work> Start(const Collective& collective);

  // The oldest incomplete operation.
  struct Oldest {
    uint64_t sequence;
    FailedCall call;
  };
  std::optional<Oldest> oldest() const;

  // The earliest deadline of the running operations.
  Instant FirstDeadline() const;

  // The error of an operation whose deadline has passed at `now`, or OK.
  Status FindTimeout(Instant now) const;

  // Ends the threads. Abort the transport first.
  void Quiesce();

  // Completes the remaining operations with `cause`. Close the transport first.
  void Close(const Status& cause);

 private:
  class SpinningWork;

  // The number of small messages that may lie unclaimed at one peer: 2 MiB.
  static constexpr uint64_t kEagerWindow = 64;
  // The number of requests, of 100 bytes each, that may do so.
  static constexpr uint64_t kRequestsMax = 1 << 20;

  struct Operation {
    const Tensor& tensor() const {
      return collective.kind == CollectiveKind::kSend ? collective.inputs[0]
                                                      : collective.outputs[0];
    }
    // Call it on receives only.
    bool Wants(int from, int tag) const {
      return collective.tag == tag &&
             (collective.peer == from || collective.peer == kAnyPeer);
    }

    Collective collective;
    std::shared_ptr<PromisedWork> work;
    // True for a send in one message.
    bool is_eager = false;
    // True for a send whose tensor the peer has begun to read.
    bool is_read = false;
    // True for a send whose tensor is posted, and has left.
    bool is_cleared = false;
    bool has_left = false;
    // True for a send that the peer has taken.
    bool is_taken = false;
    // The caller's peer; for a matched receive, the rank that sends.
    int peer = kAnyPeer;
  };
  using OperationPtr = std::shared_ptr<Operation>;

  // A message that no receive has claimed yet.
  struct Unclaimed {
    int peer;
    Message message;
    std::vector<std::byte> payload;
  };

  struct Peer {
    bool is_open = false;
    // The number of small messages that may still be sent eagerly.
    uint64_t credit = 0;
    // Small messages claimed since the last kCredit to the peer.
    uint64_t claimed = 0;
    uint64_t last_id = 0;
    // Large sends that the peer has not taken yet, by id.
    std::map<uint64_t, OperationPtr> requests;
    // Tensors that the peer was cleared to send, by the peer's id.
    std::map<uint64_t, OperationPtr> arriving;
    // The number of kEager and kRequest messages on the connection that have
    // not left.
    int unsent_offers = 0;
    // The last id that the peer offered in order, and the later offers that
    // have overtaken others, by id.
    uint64_t last_offered = 0;
    std::map<uint64_t, Unclaimed> early;
    // The numbers of kEager and kRequest messages that no receive has claimed.
    uint64_t unclaimed_eager = 0;
    uint64_t unclaimed_requests = 0;
    // The reason why no more messages come, or OK.
    Status ended;
  };

  // A tensor that this rank reads from its sender's memory.
  struct Reading {
    OperationPtr operation;
    int peer;
    Message request;
    size_t bytes_read = 0;
  };

  // Work to do after the lock is released.
  struct DeferredActions {
    std::vector<OperationPtr> done = {};
    // Done by the progress thread, or by a waiting thread.
    std::vector<Reading> readings = {};
    Status failure = OkStatus();
  };

  // The error of `collective` for `failure`. A verdict is returned unchanged.
  Status LabelFailure(const Collective& collective,
                      const Status& failure) const;

  std::shared_ptr<PromisedWork> MakeWork(const Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Leaves the work in `actions`, except the end of `own`, to other threads.
  // `wants`: this rank asked to be woken before.
  void LeaveToOthers(const OperationPtr& own, bool wants,
                     DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartSend(const OperationPtr& operation, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartSendToSelf(const OperationPtr& operation, Message message,
                       bool is_small, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartReceive(const OperationPtr& operation, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Peer& Open(int peer) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Posts a message through the mailbox or on the connection. kEager and
  // kRequest have a ticket. Returns true if the message has left. False: it is
  // queued, or the connection has ended and Ended will fail the operation.
  bool Post(int peer, const Message& message, const void* payload, size_t bytes,
            uint64_t ticket) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasMailFor(int peer) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return mailbox_ != nullptr && mailbox_->Reaches(peer);
  }
  // Takes all messages from the mailbox. False if there was none.
  bool TakeMail(DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As above, and does the work left to others. Called by a thread that waits
  // for `own` until `deadline`, or by the mailbox thread (null).
  bool TakeMail(const Work* own, Instant deadline)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  // Gives readings to the progress thread, except those that the waiter for
  // `own` shall do itself.
  void GiveAway(const Work* own, Instant deadline,
                std::vector<Reading>& readings)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveToConnections(const std::vector<Reading>& readings);
  // Has a thread copy a tensor that this rank sends to itself and complete both
  // operations: Start's caller may hold locks that callbacks need.
  void GiveToSelf(const OperationPtr& receive, const OperationPtr& send);
  // Removes and returns the first receive for `tag` from `peer`, or null.
  OperationPtr TakeReceive(int peer, int tag)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes the mailbox thread if a message may have come.
  void WakeMailboxThread() MUSTER_LOCKS_EXCLUDED(mutex_);
  // Polls the mailbox until `work` is complete or until `give_up`. The caller
  // waits until `deadline`.
  void Look(const PromisedWork& work, Instant give_up, Instant deadline)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  // Adapts the spin budget to a wait that has ended, in a sleep or in a poll.
  void Learn(bool sleeps, Instant began) MUSTER_LOCKS_EXCLUDED(mutex_);
  // Asks the peers to wake this rank until nothing runs. Call TakeMail
  // afterwards.
  void WantMail() MUSTER_LOCKS_EXCLUDED(mutex_);
  void RunMailboxThread();
  // Makes the mailbox thread poll from time to time, after a start.
  void HaveMailboxThreadLook() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Called by the progress thread.
  void* FindMemory(int peer, const Message& message, size_t bytes);
  void Received(int peer, const Message& message,
                std::span<const std::byte> payload);
  void Sent(int peer, uint64_t ticket);
  void Ended(int peer, const Status& how);

  // A copy of an offer.
  static Unclaimed Copy(int peer, const Message& message,
                        std::span<const std::byte> payload);
  // Handles a message. Does not throw: an exception ends the group.
  void Take(int peer, const Message& message,
            std::span<const std::byte> payload, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeByType(int peer, const Message& message,
                  std::span<const std::byte> payload, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOffer(int peer, const Message& message,
                 std::span<const std::byte> payload, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOfferInOrder(int peer, const Message& message,
                        std::span<const std::byte> payload,
                        DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeClear(int peer, const Message& message, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeTensor(int peer, const Message& message, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeTaken(int peer, const Message& message, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeReads(int peer, const Message& message)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Gives a message to the receive that matches it.
  void Match(const OperationPtr& operation, int peer, const Message& message,
             std::span<const std::byte> payload, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status CheckFits(const Operation& operation, int peer,
                   const Message& message) const;
  // Clears the peer to send the tensor of `request`.
  void Clear(const OperationPtr& operation, int peer, const Message& request)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends a message of `type` for tensor `id` to the peer.
  void Tell(int peer, Message::Type type, uint64_t id)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads the next part of a tensor. Returns true when the reading is over.
  bool ReadPart(Reading& reading) MUSTER_LOCKS_EXCLUDED(mutex_);
  // Removes the completed `operation` and adds it to `actions`.
  void Done(const OperationPtr& operation, DeferredActions& actions)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The error if a peer that `operation` needs has gone, or OK.
  Status LossFor(const Operation& operation) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Completes the works of `actions` and reports its failure, without the lock.
  void Carry(const DeferredActions& actions) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const std::string group_name_;
  Transport& transport_;
  P2pConnections* const connections_;
  const std::function<void(const Status&)> fail_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  MailMaker make_mail_ MUSTER_GUARDED_BY(mutex_);
  // Null before the first Start, after Close, or if there is none.
  std::shared_ptr<ShmMailbox> mailbox_ MUSTER_GUARDED_BY(mutex_);
  // Work for the thread that polls the mailbox, or for the mailbox thread.
  DeferredActions left_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<bool> has_left_{false};
  // The waiters' spin budget, updated under the lock, and whether they use it.
  SpinBudget spin_budget_;
  std::atomic<bool> learns_{false};
  Yielding yielding_;
  // Counts the events that make the mailbox thread poll.
  uint64_t started_ MUSTER_GUARDED_BY(mutex_) = 0;
  // The mailbox thread sleeps until it is woken.
  bool mailbox_thread_rests_ MUSTER_GUARDED_BY(mutex_) = false;
  MailboxOptions mail_options_ MUSTER_GUARDED_BY(mutex_);
  // The number of threads that do work from the mailbox.
  int carriers_ MUSTER_GUARDED_BY(mutex_) = 0;
  // By rank.
  std::vector<Peer> peers_ MUSTER_GUARDED_BY(mutex_);
  // The incomplete operations, by sequence number.
  std::map<uint64_t, OperationPtr> running_ MUSTER_GUARDED_BY(mutex_);
  // Receives without a message, and messages without a receive, each in order.
  std::list<OperationPtr> receives_ MUSTER_GUARDED_BY(mutex_);
  std::list<Unclaimed> unclaimed_ MUSTER_GUARDED_BY(mutex_);

  // Started with the first peer that the mailbox reaches.
  std::thread mailbox_thread_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_P2P_POINT_TO_POINT_H_
