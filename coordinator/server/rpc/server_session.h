#ifndef MUSTER_COORDINATOR_SERVER_RPC_SERVER_SESSION_H_
#define MUSTER_COORDINATOR_SERVER_RPC_SERVER_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/core/call.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/membership.h"
#include "coordinator/server/auth/auth.h"
#include "coordinator/server/jobs/job.h"
#include "coordinator/server/jobs/sink.h"
#include "coordinator/server/rpc/session_service.h"
#include "coordinator/server/rpc/session_stream.h"
#include "coordinator/server/rpc/unary.h"
#include "google/protobuf/arena.h"
#include "grpcpp/support/byte_buffer.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/v1/session.pb.h"

namespace muster::coordinator {

// ServerSession is one open session, whatever its stream is.
//
// Reading: one message at a time. Its operations are applied in order; then the
// next message is read. A message that is large or takes long is applied in
// slices, each in a turn of the session's job. If unsent answers pile up, the
// session reads and applies nothing more until they are written, so the
// transport's flow control reaches the client.
//
// Writing: one message at a time. Deliveries during a write go into the next
// message. A large message is built in a turn, too.
//
// Life: the stream calls the reactions, OnDone last. The session retires when
// OnDone and its last turn are over; `self_` keeps it until then, and a job's
// references may keep it longer. After Finish no operation of the stream is
// started; `mu_` ensures that.
class ServerSession final : public Sink,
                            public std::enable_shared_from_this<ServerSession> {
 public:
  // The arguments outlive the session, `stream` until OnDone.
  ServerSession(SessionTable& table, const ServiceContext& context,
                SessionStream& stream);

  void Start();

  // Implements Sink.
  void Deliver(absl::Span<Answer> answers) override;
  void Publish(const SharedEvent& event) override;
  void Flush() override;
  void Close(const Status& status) override;

  // Applies no more operations. Earlier ones are still answered. Call Drain
  // later: its client repeats the others elsewhere.
  void Hold();

  // Whether the session's job is one of `jobs`.
  bool IsOfOne(const JobSet& jobs);

  // Takes no more messages, and ends the session with `status` when all answers
  // to earlier messages are sent. The client repeats calls that are refused
  // with kUnavailable meanwhile.
  void Drain(const Status& status);

  // Ends the session if its client has not taken a message, or not sent its
  // hello, for `timeout`.
  void CutOffIfStalled(core::Instant now, core::Duration timeout);

  // Ends the session if its token is no longer valid.
  void EndIfNotAllowed();

  // The stream's reactions. OnCancel: the client is gone. OnRelayGone: the
  // relay between the client and this coordinator is gone.
  void OnReadDone(bool ok);
  void OnWriteDone(bool ok);
  void OnCancel();
  void OnRelayGone();
  void OnDone();

 private:
  void ReadNext() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AcceptRead();
  void EndReading() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AcceptInTask();
  Status Accept();
  Status FindJob();
  Status Greet();
  size_t ItemsLeft() const;
  bool TakesLong() const;
  void Continue();
  void PostTask(void (ServerSession::*work)())
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTask(void (ServerSession::*work)());
  void ProcessLong();
  void Process();
  void ContinueReading() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Retire();
  size_t ProcessSlice(size_t count, Status* status);
  Job::Applied ApplyItem(size_t item, core::WaiterId waiter,
                         JobContext& context, Status* status);
  v1::Operation* FindOperation(size_t item) const;
  void Write();
  void Build() MUSTER_NO_THREAD_SAFETY_ANALYSIS;
  void CountAnswers(absl::Span<const Answer> answers);
  void FinishLocked(const Status& status) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishIfThroughLocked() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SessionTable& table_;
  const ServiceContext& context_;
  SessionStream& stream_;
  const core::Instant started_;
  std::shared_ptr<ServerSession> self_;  // set by Start, reset by OnDone

  // The reading side. Used only by the reaction to a read, by a turn, or by the
  // resumption of a paused message, one at a time.
  google::protobuf::Arena read_arena_;
  grpc::ByteBuffer bytes_;
  v1::StreamRequest* request_ = nullptr;
  size_t request_bytes_ = 0;
  size_t next_item_ = 0;  // of the message's heartbeat and operations
  int64_t slice_cost_ = 0;
  // Not OK: the storage has no space. The answers to calls of this slice that
  // were refused for it, which wait for no earlier step.
  Status no_space_;
  std::vector<Answer> refused_;
  std::shared_ptr<Job> job_;  // set by FindJob
  core::Call call_;           // the hello's caller
  bool welcomed_ = false;     // Greet has been called

  // The writing side. Used only by the thread that has set `writing_`.
  google::protobuf::Arena write_arena_;
  v1::StreamResponse* response_ = nullptr;
  std::vector<Answer> sending_;
  size_t sent_ = 0;  // of `sending_`
  std::vector<SharedEvent> sending_events_;
  size_t sent_events_ = 0;  // of `sending_events_`
  // The size of the message that Build made last.
  struct Built {
    int64_t bytes = 0;  // of events and answers
    int64_t event_bytes = 0;
  };
  Built built_;
  bool send_welcome_ = false;

  Mutex mu_;
  bool greeted_ MUSTER_GUARDED_BY(mu_) = false;
  // Set with greeted_ if there is an Auth.
  std::optional<Auth::Pass> pass_ MUSTER_GUARDED_BY(mu_);
  bool ready_ MUSTER_GUARDED_BY(mu_) = false;  // the welcome may go out
  v1::Welcome welcome_ MUSTER_GUARDED_BY(mu_);
  std::vector<Answer> queue_ MUSTER_GUARDED_BY(mu_);
  std::vector<SharedEvent> events_ MUSTER_GUARDED_BY(mu_);
  int64_t unsent_bytes_ MUSTER_GUARDED_BY(mu_) = 0;  // of answers and events
  int64_t unsent_event_bytes_ MUSTER_GUARDED_BY(mu_) = 0;
  int64_t unsent_answers_ MUSTER_GUARDED_BY(mu_) = 0;
  // Calls without an answer. Negative while a slice is applied whose answers
  // are already delivered.
  int64_t outstanding_ MUSTER_GUARDED_BY(mu_) = 0;
  bool writing_ MUSTER_GUARDED_BY(mu_) = false;
  core::Instant write_started_at_ MUSTER_GUARDED_BY(mu_);
  bool paused_ MUSTER_GUARDED_BY(mu_) = false;
  bool half_closed_ MUSTER_GUARDED_BY(mu_) = false;
  // See Hold.
  bool held_ MUSTER_GUARDED_BY(mu_) = false;
  // Not OK: the coordinator drains, or has the job no more.
  Status draining_ MUSTER_GUARDED_BY(mu_);
  bool finished_ MUSTER_GUARDED_BY(mu_) = false;
  // How the member lost its connection. kDismissed: its token is no longer
  // valid; the process may have another one.
  core::Disconnection disconnection_ MUSTER_GUARDED_BY(mu_) =
      core::Disconnection::kClosed;
  core::Instant finished_at_ MUSTER_GUARDED_BY(mu_);
  bool done_ MUSTER_GUARDED_BY(mu_) = false;
  int posted_tasks_ MUSTER_GUARDED_BY(mu_) = 0;  // turns posted or running
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_SERVER_SESSION_H_
