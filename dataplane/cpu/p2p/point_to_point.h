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
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/serial_executor.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/transport/p2p_connection.h"
#include "dataplane/cpu/transport/shm_mailbox.h"
#include "dataplane/cpu/transport/spin_wait.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/failed_call.h"
#include "dataplane/work.h"

namespace muster::dataplane::cpu {

// PointToPoint runs the sends and receives of one group on one rank, in
// parallel to the collectives.
//
// Each pair of ranks has a channel in each direction, for messages of bounded
// size. Sends are matched with receives by peer and tag, in the order in which
// they arrive. A small tensor travels inside its message; up to kEagerWindow of
// these may lie unclaimed at the receiver. For a large tensor the message is a
// request. Once a receive claims it, and has announced exactly its size, the
// receiver clears the sender to send, from tensor to tensor.
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
// If the receiver can read the sender's memory (Transport::MemoryOf), the
// request carries the tensor's address, and the receiver copies the tensor:
//
//   kRequest             ->     waits until it is claimed
//                        <-     kReads, in case that it leaves after it
//                               the tensor; if it cannot be read: kClear
//                        <-     kTaken
//
// Ranks of one host may share a ShmMailbox (SetMail). It carries all messages
// for which it has room, except kClear and kDone, which travel with the tensor.
// It carries no kEager or kRequest before all messages that went over the
// channel have left; otherwise a complete message could be lost together with
// an incomplete one. Messages that arrive over both are ordered by their ids.
//
// A rank's sends to itself are matched in the same way, without a channel: a
// small tensor is kept until a receive claims it, and a large one is copied
// from tensor to tensor.
//
// A thread that waits for a send or receive polls the mailbox for a while, so
// it gets messages without another thread. Only when it stops polling, or when
// the progress thread, which polls from time to time, finds something running,
// does this rank ask its peers to wake it: a thread that wakes up competes with
// those that poll.
//
// Thread-safe. Its threads are: those of the channels, which are opened when
// this rank first sends to or receives from a peer; one for mailbox messages
// that arrive while no thread polls; and one for this rank's sends to itself.
class PointToPoint : public std::enable_shared_from_this<PointToPoint> {
 public:
  // `fail` ends the group; it may be called from any thread, without locks.
  PointToPoint(std::string group_name, Transport& transport,
               std::function<void(const Status&)> fail);

  // After Close, unless nothing was started.
  ~PointToPoint() = default;

  struct MailboxOptions {
    // There are fewer processors than ranks: who waits does not look for longer
    // than kSpinTime, whatever he has learnt.
    bool is_crowded = false;
    // How often the progress thread looks for mail while sends and receives are
    // started, and how often in vain before he sleeps until he is rung for.
    std::chrono::microseconds look_period{500};
    int idle_looks = 100;
  };

  // Makes what it shares with the ranks of its host; null: it cannot be had.
  using MailMaker = std::function<std::shared_ptr<ShmMailbox>()>;

  // `make` is called by the first Start, and SetMail before that.
  void SetMail(MailMaker make, const MailboxOptions& options);

  // Of a kSend or kRecv. Does not block.
  std::shared_ptr<Work> Start(const Collective& collective);

  // The oldest that is not complete.
  struct Oldest {
    uint64_t sequence;
    FailedCall call;
  };
  std::optional<Oldest> oldest() const;

  // When the first of those that run has to be complete.
  Instant FirstDeadline() const;

  // The error of one whose deadline has passed at `now`, or OK.
  Status FindTimeout(Instant now) const;

  // Ends the threads. The transport is aborted.
  void Quiesce();

  // Completes what is left with `cause`. The transport is closed.
  void Close(const Status& cause);

 private:
  class SpinningWork;

  // Small messages to one peer that may lie unclaimed there: 2 MiB of them.
  static constexpr uint64_t kEagerWindow = 64;

  struct Operation {
    const Tensor& tensor() const {
      return collective.kind == CollectiveKind::kSend ? collective.inputs[0]
                                                      : collective.outputs[0];
    }
    // Of a receive.
    bool Wants(int from, int tag) const {
      return collective.tag == tag &&
             (collective.peer == from || collective.peer == kAnyPeer);
    }

    Collective collective;
    std::shared_ptr<PromisedWork> work;
    // A send in one message.
    bool is_eager = false;
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
    std::unique_ptr<P2pConnection> connection;
    // How many more small messages may be sent without a request.
    uint64_t credit = 0;
    // How many small ones were claimed since it was last told.
    uint64_t claimed = 0;
    uint64_t last_id = 0;
    // Large ones that are not taken yet, by id.
    std::map<uint64_t, OperationPtr> requests;
    // Tensors that were cleared to come, by the peer's id.
    std::map<uint64_t, Arriving> arriving;
    // Of what was offered on the connection, how many have not left.
    int unsent_offers = 0;
    // Of what the peer offers: the last id in order, and what has overtaken
    // others, by id.
    uint64_t last_offered = 0;
    std::map<uint64_t, Unclaimed> early;
    // How it went, once its messages have ended.
    Status ended;
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
    Status failure = OkStatus();
  };

  // Its error; a verdict as it is.
  Status FailureOf(const Collective& collective, const Status& failure) const;

  std::shared_ptr<PromisedWork> WorkOf(const Collective& collective)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What `outcome` has, beside the end of `own`, is not for this thread.
  // Somebody may sleep if this rank wanted mail before: `wants`.
  void LeaveToOthers(const OperationPtr& own, bool wants, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartSend(const OperationPtr& operation, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartSendToSelf(const OperationPtr& operation, Message message,
                       bool is_small, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartReceive(const OperationPtr& operation, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Peer& Open(int peer) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Posts a message, by mail or on the channel; an offer has a ticket. It has
  // left: by mail.
  StatusOr<bool> Post(int peer, const Message& message, const void* payload,
                      size_t bytes, uint64_t ticket)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasMailFor(int peer) const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return mailbox_ != nullptr && mailbox_->Reaches(peer);
  }
  // Takes what has come by mail. False: nothing has.
  bool TakeMail(Outcome& outcome) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same and what was left to others, for who waits for `own` until
  // `deadline`, or for the progress thread.
  bool TakeMail(const Work* own, Instant deadline)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  // Keeps what that one shall read himself.
  void GiveAway(const Work* own, Instant deadline,
                std::vector<Reading>& readings)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveToChannels(const std::vector<Reading>& readings)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has a thread copy what this rank sends to itself, and complete both: the
  // callbacks of the one that was started first need locks of Start's caller.
  void GiveToSelf(const OperationPtr& receive, const OperationPtr& send)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the first receive that waits for `tag` from `peer`; null: none does.
  OperationPtr TakeReceive(int peer, int tag)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the progress thread take what may have come.
  void WakeProgressThread() MUSTER_LOCKS_EXCLUDED(mutex_);
  // Looks for mail until `work` is complete, or until `give_up`. Its caller
  // waits until `deadline`.
  void Look(const PromisedWork& work, Instant give_up, Instant deadline)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  // From a wait that is over, in a sleep or in a look.
  void Learn(bool sleeps, Instant began) MUSTER_LOCKS_EXCLUDED(mutex_);
  // From now on until nothing runs the bell is to be rung. TakeMail has to
  // follow.
  void WantMail() MUSTER_LOCKS_EXCLUDED(mutex_);
  void RunProgressThread();
  // Something has been started: the progress thread looks from time to time.
  void HaveProgressThreadLook() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Called by the threads of the channels.
  void Received(int peer, const Message& message, const std::byte* payload);
  void Sent(int peer, uint64_t sequence);
  void Ended(int peer, const Status& how);

  // A copy of what was offered.
  static Unclaimed Copy(int peer, const Message& message,
                        const std::byte* payload);
  void Take(int peer, const Message& message, const std::byte* payload,
            Outcome& outcome) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOffer(int peer, const Message& message, const std::byte* payload,
                 Outcome& outcome) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOfferInOrder(int peer, const Message& message,
                        const std::byte* payload, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeClear(int peer, const Message& message, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeDone(int peer, const Message& message, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeTaken(int peer, const Message& message, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeReads(int peer, const Message& message)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Joins what came with the receive that wants it.
  void Match(const OperationPtr& operation, int peer, const Message& message,
             const std::byte* payload, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status CheckFits(const Operation& operation, int peer,
                   const Message& message) const;
  // Announces the tensor of `request` and clears the peer to send it.
  Status Clear(const OperationPtr& operation, int peer, const Message& request)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the peer `type` of its `id`.
  Status Tell(int peer, Message::Type type, uint64_t id)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read(const Reading& reading) MUSTER_LOCKS_EXCLUDED(mutex_);
  // `operation` is complete.
  void Done(const OperationPtr& operation, Outcome& outcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How the peer that an operation needs went, or OK.
  Status LossFor(const Operation& operation) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does it, without the lock.
  void Carry(const Outcome& outcome) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const std::string group_name_;
  Transport& transport_;
  const std::function<void(const Status&)> fail_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  MailMaker make_mail_ MUSTER_GUARDED_BY(mutex_);
  // Null: this rank has none, not yet, or no more.
  std::shared_ptr<ShmMailbox> mailbox_ MUSTER_GUARDED_BY(mutex_);
  // Work for the thread that polls the mailbox, or for the progress thread.
  Outcome left_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<bool> has_left_{false};
  // Of those who wait, told under the lock; and whether they go by it.
  SpinBudget spin_budget_;
  std::atomic<bool> learns_{false};
  Yielding yielding_;
  // How often there was something new for the progress thread to look after.
  uint64_t started_ MUSTER_GUARDED_BY(mutex_) = 0;
  // He sleeps until he is rung for.
  bool progress_thread_rests_ MUSTER_GUARDED_BY(mutex_) = false;
  MailboxOptions mail_options_ MUSTER_GUARDED_BY(mutex_);
  // Threads that do what mail has brought.
  int carriers_ MUSTER_GUARDED_BY(mutex_) = 0;
  // By rank. Channels last until Close.
  std::vector<Peer> peers_ MUSTER_GUARDED_BY(mutex_);
  // All that are not complete, by number.
  std::map<uint64_t, OperationPtr> running_ MUSTER_GUARDED_BY(mutex_);
  // Receives that nothing has come for, and what no receive has claimed, each
  // in their order.
  std::list<OperationPtr> receives_ MUSTER_GUARDED_BY(mutex_);
  std::list<Unclaimed> unclaimed_ MUSTER_GUARDED_BY(mutex_);

  // Waits for mail, from the first peer on that is reached by it.
  std::thread progress_thread_;
  // Null until this rank first sends itself something that is waited for.
  std::unique_ptr<SerialExecutor> to_self_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_P2P_POINT_TO_POINT_H_
