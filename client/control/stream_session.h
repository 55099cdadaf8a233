// The connection behind a Session: one stream to the coordinator that has the
// job, reestablished when it breaks or when the job moves.

#ifndef MUSTER_CLIENT_CONTROL_STREAM_SESSION_H_
#define MUSTER_CLIENT_CONTROL_STREAM_SESSION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/control/batch_window.h"
#include "client/control/canceller.h"
#include "client/control/channel_security.h"
#include "client/control/connection.h"
#include "client/control/deadline.h"
#include "client/control/endpoint.h"
#include "client/control/fork_guard.h"
#include "client/control/operation_table.h"
#include "client/control/owner_search.h"
#include "client/control/relay_route.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/session.h"
#include "muster/v1/session.pb.h"

namespace muster::internal {

// StreamSession carries operations. A caller that issues one writes it at once,
// together with all that are waiting, unless the stream is busy or other
// callers were woken just now and are about to issue theirs (BatchWindow).
//
// One thread at a time polls the connection: it reads, wakes callers, and
// writes what gathered while the stream was busy. A lone caller polls for
// itself, which saves the two thread switches of a wake-up (25 of 90 us on an
// idle machine). Otherwise the session's own thread polls. That thread also
// connects and delivers events; when callers come one after another, it leaves
// polling to them. Another thread sends heartbeats and ends writes and
// connection attempts that are stuck.
//
// A stream that ends with a JobOwner has moved: the session goes to the
// coordinator that it names, with the same incarnation, and sends again what
// has no answer.
//
// All errors are statuses; kUnavailable means that there was no answer.
//
// In a forked child every call fails at once and touches neither the connection
// nor a lock.
class StreamSession {
 public:
  // Connects. Returns when the coordinator has accepted this member, or after
  // options.connect_timeout.
  static StatusOr<std::unique_ptr<StreamSession>> Connect(
      SessionOptions options);

  // Calls Close.
  ~StreamSession();

  StreamSession(const StreamSession&) = delete;
  StreamSession& operator=(const StreamSession&) = delete;

  // Sends `operation` and waits for its answer until the deadline. If the
  // operation was sent, waits slightly longer, because the coordinator's own
  // deadline error says more. Another thread can end the call with `canceller`
  // (may be null): kCancelled.
  StatusOr<v1::Result> Call(v1::Operation operation, const Deadline& deadline,
                            Canceller* canceller = nullptr)
      MUSTER_LOCKS_EXCLUDED(mutex_);

  // Ends the stream and the threads. Calls in progress fail with kCancelled.
  // Not from a callback.
  void Close() MUSTER_LOCKS_EXCLUDED(mutex_);

  // Whether the member has left or is about to leave. Then the end of the
  // stream is no error and is not reported.
  bool has_left() const MUSTER_LOCKS_EXCLUDED(mutex_);
  void set_left() MUSTER_LOCKS_EXCLUDED(mutex_);

  // OK while the session lasts.
  Status status() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // kFailedPrecondition in a forked child.
  Status CheckIsHere() const;

  // Whether there is a stream now.
  bool connected() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // Whether the coordinator knows ReportGroupFailure.
  bool judges_groups() const MUSTER_LOCKS_EXCLUDED(mutex_);

  const SessionOptions& options() const { return options_; }
  uint64_t incarnation() const { return incarnation_; }
  uint64_t epoch() const MUSTER_LOCKS_EXCLUDED(mutex_);

 private:
  // How long the session's thread leaves polling to lone callers before it
  // checks again; doubles up to the maximum while they come. Events may be late
  // by this much when the calls stop. A caller that has polled for longer wakes
  // the thread when its call ends; for short calls the wake-up would cost too
  // much.
  static constexpr std::chrono::milliseconds kStandBackMin{10};
  static constexpr std::chrono::milliseconds kStandBackMax{40};

  StreamSession(SessionOptions options, ChannelSecurity security,
                std::vector<Endpoint> addresses, RelayRoute relay);

  // Returns "coordinator at 10.0.0.1:7070 (embedded in rank 0)": the one that
  // the session is with, or tried last.
  std::string Coordinator() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Coordinator(absl::string_view address) const;
  // Returns "; tried a:7070,b:7070" if there are several addresses.
  std::string Tried() const;

  // Used only by the session's own thread.
  void Run();
  Status ConnectAndServe();
  Status Open(Connection& connection);
  bool HasNewToken(const Status& refusal) const;
  // Makes an error of a connection that was not accepted.
  Status Explain(const Status& failure) const MUSTER_LOCKS_EXCLUDED(mutex_);
  bool AwaitMessage(Connection& connection);
  Status Welcome(const v1::StreamResponse& response);
  Status Serve(Connection& connection);
  void DeliverEvents(const v1::StreamResponse& response);
  void Disconnect(const Status& why);
  // Waits until the next attempt is due. False: the session is over.
  bool RetryLater(Status why);
  void TellUnreached(const Status& why, bool referred)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellDisconnected(const Status& why)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellReconnected(const v1::Welcome& welcome)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool GiveUp(const Status& why);
  // The time at which a session without a connection is over.
  Instant GivesUpAt() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::chrono::milliseconds ProbeTime() const MUSTER_LOCKS_EXCLUDED(mutex_);
  void End(const Status& why) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Makes a heartbeat with the progress of this process. Any thread.
  v1::HeartbeatRequest CurrentProgress() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // Used only by the heartbeat thread.
  void Beat();
  void CancelIfStuck(Instant now) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Used by callers. Await sleeps until `pending` is done or its deadline
  // passes. At `until`, if that is earlier, it ends the batch window that this
  // caller has begun.
  Status Await(PendingOperation& pending, Instant until,
               const Deadline& deadline) MUSTER_LOCKS_EXCLUDED(mutex_);
  void PollFor(const PendingOperation& own)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status NoAnswer(const Deadline& deadline, Instant now) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Used by the polling thread.
  void Handle(Connection& connection, Connection::Event event)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Complete(v1::StreamResponse& response) MUSTER_LOCKS_EXCLUDED(mutex_);

  bool CanWrite() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether something can be written that no caller's batch window delays.
  bool WriteIsDue(Instant now) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Requires CanWrite. Releases the lock during the write.
  void WriteWhatWaits(Instant now) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::StreamRequest HelloMessage() const;

  // Constant after construction.
  const SessionOptions options_;
  const ChannelSecurity security_;
  const uint64_t incarnation_;
  const std::string host_;
  const Instant created_at_;
  const ForkGuard fork_guard_;

  mutable Mutex mutex_;
  // Signals changes for Connect and the heartbeat thread; calls do not signal
  // it.
  CondVar changed_;
  // Signals that the session's own thread may have to poll.
  CondVar turn_;
  OperationTable operations_ MUSTER_GUARDED_BY(mutex_);
  BatchWindow batch_window_ MUSTER_GUARDED_BY(mutex_);
  // Whether a caller will write the batch at batch_window_.until().
  bool ends_gathering_ MUSTER_GUARDED_BY(mutex_) = false;
  // Set during an attempt and its connection, so that it can be cancelled.
  Connection* connection_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  // The coordinator has accepted the member: operations may be written.
  bool open_ MUSTER_GUARDED_BY(mutex_) = false;
  // This connection has brought an answer.
  bool answered_ MUSTER_GUARDED_BY(mutex_) = false;
  // A thread polls the connection, without the lock; the connection stays.
  bool polling_ MUSTER_GUARDED_BY(mutex_) = false;
  // A caller that polled left a message with events for the session's thread.
  bool has_events_ MUSTER_GUARDED_BY(mutex_) = false;
  // The session's own thread waits until no other thread polls.
  bool waits_to_poll_ MUSTER_GUARDED_BY(mutex_) = false;
  // How many calls were alone on the stream. Their callers poll for themselves.
  uint64_t lone_calls_ MUSTER_GUARDED_BY(mutex_) = 0;
  // A thread hands over a message, without the lock; the connection stays.
  bool writing_ MUSTER_GUARDED_BY(mutex_) = false;
  // The transport has not taken the last message yet.
  bool flushing_ MUSTER_GUARDED_BY(mutex_) = false;
  Instant writing_since_ MUSTER_GUARDED_BY(mutex_);
  Instant attempt_since_ MUSTER_GUARDED_BY(mutex_);
  bool heartbeat_due_ MUSTER_GUARDED_BY(mutex_) = false;
  v1::HeartbeatRequest heartbeat_ MUSTER_GUARDED_BY(mutex_);
  std::chrono::milliseconds lease_ MUSTER_GUARDED_BY(mutex_){0};
  // The coordinator that the session is with, or tried last.
  Endpoint endpoint_ MUSTER_GUARDED_BY(mutex_);
  uint64_t epoch_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t job_epoch_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool judges_groups_ MUSTER_GUARDED_BY(mutex_) = false;
  // Why there is no connection, and since when.
  Status trouble_ MUSTER_GUARDED_BY(mutex_);
  Instant down_since_ MUSTER_GUARDED_BY(mutex_);
  bool left_ MUSTER_GUARDED_BY(mutex_) = false;
  bool closing_ MUSTER_GUARDED_BY(mutex_) = false;
  Status over_ MUSTER_GUARDED_BY(mutex_);

  // Used only by the session's own thread.
  OwnerSearch search_;
  // Used only by the session's own thread: whether something listens at the
  // current address, or is said to.
  bool listening_ = false;
  // Used only by the session's own thread: the last address at which a probe
  // found nothing.
  std::string unreached_;
  // Used only by the session's own thread: how often something listened that
  // did not serve (NewChannel).
  size_t unserved_ = 0;
  // Used only by the session's own thread: the coordinator of the last
  // connection, and whether the log tells of its end.
  std::string served_by_;
  bool told_disconnected_ = false;
  // Used only by the session's own thread: when it logs next that the
  // coordinator has never answered.
  Instant tell_unreached_at_ = Instant::min();
  const Instant trying_since_ = Clock::now();
  // Used only by the session's own thread.
  RelayRoute relay_;
  // Used only by the session's own thread: the token of its last connection.
  std::string authorization_;

  Mutex join_mutex_;
  std::thread reader_;
  std::thread heart_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_STREAM_SESSION_H_
