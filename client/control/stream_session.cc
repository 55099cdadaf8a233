#include "client/control/stream_session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/process_limits.h"
#include "base/text.h"
#include "client/control/channel.h"
#include "client/control/channel_security.h"
#include "client/control/convert.h"
#include "glog/logging.h"
#include "muster/v1/session.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How much longer than its deadline a call waits for the coordinator's own
// error about the deadline.
constexpr milliseconds kAnswerSlack = seconds(1);

Status CancelledByCaller() { return CancelledError("cancelled by the caller"); }

uint64_t RandomNumber() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// Not 0, which means "no incarnation" on the wire.
uint64_t NewIncarnation() {
  uint64_t incarnation = 0;
  while (incarnation == 0) incarnation = RandomNumber();
  return incarnation;
}

// The number of sessions, including those that this process inherited by a
// fork, and the fork count at the last construction (ForkGuard::Forks).
constinit std::atomic<int> g_sessions{0};
constinit std::atomic<uint32_t> g_forks_of_last{0};

// In a child with an inherited session gRPC has no threads: a new session would
// wait forever.
Status CheckNoneIsInherited() {
  if (g_sessions.load() == 0 || g_forks_of_last.load() == ForkGuard::Forks()) {
    return OkStatus();
  }
  return FailedPreconditionError(
      "this process was forked off by one that had a session, without its "
      "threads: fork before the first session, or execute a program");
}

}  // namespace

StatusOr<std::unique_ptr<StreamSession>> StreamSession::Connect(
    SessionOptions options) {
  Status own = CheckNoneIsInherited();
  if (!own.ok()) return own;
  StatusOr<std::vector<Endpoint>> addresses =
      ParseEndpoints("address", options.address);
  if (!addresses.ok()) return addresses.status();
  Status room = CheckProcessLimits();
  if (!room.ok()) return room;
  // Checks the files once. Later failures are retried.
  StatusOr<ChannelSecurity> security = ChannelSecurity::Take(options);
  if (!security.ok()) return security.status();
  for (const Endpoint& each : *addresses) {
    Status loaded = security->Load(each).status();
    if (!loaded.ok()) return loaded;
  }
  StatusOr<RelayRoute> relay = RelayRoute::Take(options.address);
  if (!relay.ok()) return relay.status();
  std::unique_ptr<StreamSession> session(
      new StreamSession(std::move(options), *std::move(security),
                        *std::move(addresses), *std::move(relay)));
  const Deadline deadline =
      Deadline::After(session->options_.connect_timeout,
                      session->options_.connect_timeout_name);
  try {
    session->reader_ = std::thread([raw = session.get()] { raw->Run(); });
    session->heart_ = std::thread([raw = session.get()] { raw->Beat(); });
  } catch (const std::system_error& error) {
    session->Close();
    return ResourceExhaustedError(DescribeSystemError(error));
  }
  Status failure;
  {
    const std::stop_callback on_stop(session->options_.stop_connecting, [&] {
      MutexLock lock(session->mutex_);
      session->changed_.NotifyAll();
    });
    MutexLock lock(session->mutex_);
    // A connection that broke at once counts, too: the session reconnects, and
    // calls report it if that fails.
    while (session->epoch_ == 0 && session->over_.ok() && failure.ok()) {
      if (session->options_.stop_connecting.stop_requested()) {
        failure = CancelledByCaller();
        break;
      }
      session->changed_.WaitUntil(session->mutex_, deadline.at);
      if (session->epoch_ == 0 && deadline.Passed(Clock::now())) {
        failure = session->NoAnswer(deadline, Clock::now());
      }
    }
    if (!session->over_.ok()) failure = session->over_;
  }
  if (!failure.ok()) {
    session->Close();
    return failure;
  }
  return session;
}

StreamSession::StreamSession(SessionOptions options, ChannelSecurity security,
                             std::vector<Endpoint> addresses, RelayRoute relay)
    : options_([&] {
        if (options.pid == 0) options.pid = getpid();
        if (options.member.empty()) {
          options.member =
              absl::StrCat(HostName(), "-", options.pid, "-",
                           absl::Hex(static_cast<uint32_t>(RandomNumber()),
                                     absl::kZeroPad8));
        }
        return std::move(options);
      }()),
      security_(std::move(security)),
      incarnation_(NewIncarnation()),
      host_(HostName()),
      created_at_(Clock::now()),
      endpoint_(addresses.front()),
      down_since_(created_at_),
      search_(std::move(addresses), incarnation_),
      relay_(std::move(relay)) {
  g_sessions.fetch_add(1);
  g_forks_of_last.store(ForkGuard::Forks());
}

StreamSession::~StreamSession() {
  Close();
  g_sessions.fetch_sub(1);
}

Status StreamSession::CheckIsHere() const {
  if (fork_guard_.is_here()) return OkStatus();
  // Without the lock, which a thread of the parent may have had.
  return FailedPreconditionError(
      absl::StrCat("session with ", Coordinator(options_.address), kIsParents));
}

void StreamSession::Close() {
  if (!fork_guard_.is_here()) return;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    if (connection_ != nullptr) connection_->Cancel();
    changed_.NotifyAll();
    turn_.NotifyOne();
  }
  {
    MutexLock joining(join_mutex_);
    if (reader_.joinable()) reader_.join();
    if (heart_.joinable()) heart_.join();
  }
  std::string coordinator;
  {
    MutexLock lock(mutex_);
    coordinator = Coordinator();
  }
  End(CancelledError(
      absl::StrCat("session with ", coordinator, " was closed")));
}

StatusOr<v1::Result> StreamSession::Call(v1::Operation operation,
                                         const Deadline& deadline,
                                         Canceller* canceller) {
  if (!fork_guard_.is_here()) return CheckIsHere();
  EscapeTexts(&operation);
  // Sends this process's last progress first, so that other members can read
  // it.
  const bool ends = operation.has_leave() || operation.has_report_failure() ||
                    operation.has_report_group_failure();
  v1::HeartbeatRequest progress;
  if (ends) progress = CurrentProgress();
  const auto pending =
      std::make_shared<PendingOperation>(std::move(operation), deadline);
  // The end of the sleep: the deadline, or the end of the batch window that
  // this caller began.
  Instant until = deadline.at;
  {
    MutexLock lock(mutex_);
    if (!over_.ok()) return over_;
    Status added = operations_.Add(pending);
    if (!added.ok()) return added;
    if (ends) {
      heartbeat_ = std::move(progress);
      heartbeat_due_ = true;
    }
    const Instant now = Clock::now();
    batch_window_.CameBack(operations_.under_way(), now);
    if (batch_window_.Expects(now)) {
      if (!ends_gathering_) until = std::min(until, batch_window_.until());
      ends_gathering_ = true;
    } else if (CanWrite()) {
      WriteWhatWaits(now);
    }
    if (open_ && !polling_) {
      // A caller with a canceller must not sleep in the transport.
      if (canceller == nullptr && operations_.unanswered() == 1 &&
          !ends_gathering_) {
        PollFor(*pending);
      } else {
        turn_.NotifyOne();
      }
    }
  }
  if (canceller != nullptr) canceller->Begin(pending);
  Status failure = Await(*pending, until, deadline);
  if (canceller != nullptr) canceller->End();
  if (!failure.ok()) return failure;
  if (!pending->status.ok()) return pending->status;
  return std::move(pending->result);
}

Status StreamSession::Await(PendingOperation& pending, Instant until,
                            const Deadline& deadline) {
  bool slack_used = false;
  for (;;) {
    const uint32_t seen = pending.batch_event->Look();
    if (pending.done()) return OkStatus();
    if (!pending.cancelled.load()) pending.batch_event->Sleep(seen, until);
    if (pending.done()) return OkStatus();
    const Instant now = Clock::now();
    const bool cancelled = pending.cancelled.load();
    if (now < until && !cancelled) continue;
    MutexLock lock(mutex_);
    if (pending.done()) return OkStatus();
    if (cancelled) {
      operations_.Abandon(pending);
      if (CanWrite() && operations_.HasWaiting()) WriteWhatWaits(now);
      return CancelledByCaller();
    }
    if (until < deadline.at) {
      // The batch window is over, and not all callers came.
      until = deadline.at;
      if (CanWrite() && operations_.HasWaiting()) WriteWhatWaits(now);
    } else if (!slack_used && open_ &&
               pending.state == PendingOperation::State::kSent) {
      slack_used = true;
      until += kAnswerSlack;
    } else {
      Status failure = NoAnswer(deadline, now);
      operations_.Abandon(pending);
      // Also writes the batch that this caller should have written.
      if (CanWrite() && operations_.HasWaiting()) WriteWhatWaits(now);
      return failure;
    }
  }
}

bool StreamSession::CanWrite() const {
  return open_ && !writing_ && !flushing_ && connection_ != nullptr;
}

void StreamSession::WriteWhatWaits(Instant now) {
  do {
    Batch batch;
    operations_.Pack(now, batch);
    ends_gathering_ = false;
    if (heartbeat_due_) {
      batch.request().mutable_heartbeat()->Swap(&heartbeat_);
      heartbeat_due_ = false;
    }
    if (batch.request().operations_size() == 0 &&
        !batch.request().has_heartbeat()) {
      return;  // All callers have given up.
    }
    writing_ = true;
    flushing_ = true;
    writing_since_ = now;
    Connection* const connection = connection_;
    mutex_.Unlock();
    connection->Write(batch.request());
    mutex_.Lock();
    writing_ = false;
    // The thread that ends the connection waits for the end of the write.
    if (!open_) turn_.NotifyOne();
    // The polling thread may have seen the end of the write already.
  } while (WriteIsDue(Clock::now()));
}

bool StreamSession::WriteIsDue(Instant now) {
  if (!CanWrite()) return false;
  if (heartbeat_due_) return true;
  return operations_.HasWaiting() &&
         !(ends_gathering_ && batch_window_.Expects(now));
}

void StreamSession::Handle(Connection& connection, Connection::Event event) {
  switch (event) {
    case Connection::Event::kNothing:
      break;
    case Connection::Event::kReceived:
      mutex_.Unlock();
      Complete(connection.received());
      mutex_.Lock();
      break;
    case Connection::Event::kWritten:
      flushing_ = false;
      break;
    case Connection::Event::kBroken:
      open_ = false;
      break;
  }
  // Writes operations that came while the stream was busy.
  const Instant now = Clock::now();
  if (WriteIsDue(now)) WriteWhatWaits(now);
}

void StreamSession::PollFor(const PendingOperation& own) {
  polling_ = true;
  Connection& connection = *connection_;
  while (open_ && !own.done() && !has_events_ &&
         !own.deadline.Passed(Clock::now())) {
    mutex_.Unlock();
    const Connection::Event event = connection.Poll(own.deadline.at);
    mutex_.Lock();
    if (event == Connection::Event::kReceived &&
        connection.received().events_size() > 0) {
      // The session's own thread runs the user's callbacks.
      has_events_ = true;
    } else {
      Handle(connection, event);
    }
  }
  polling_ = false;
  ++lone_calls_;
  if (!open_ || has_events_ || operations_.unanswered() > 0 || waits_to_poll_) {
    turn_.NotifyOne();
  }
}

Status StreamSession::NoAnswer(const Deadline& deadline, Instant now) const {
  const milliseconds waited = deadline.timeout - deadline.Remaining(now);
  if (open_) {
    return UnavailableError(absl::StrCat(Coordinator(), ": no answer for ",
                                         FormatDuration(waited), " ",
                                         deadline.Blame()));
  }
  const milliseconds down = std::min(
      waited, std::chrono::duration_cast<milliseconds>(now - down_since_));
  return UnavailableError(absl::StrCat(
      Coordinator(), ": ", trouble_.ok() ? "no connection" : trouble_.message(),
      " for ", FormatDuration(down), " ", deadline.Blame(), Tried()));
}

bool StreamSession::has_left() const {
  if (!fork_guard_.is_here()) return true;
  MutexLock lock(mutex_);
  return left_;
}

void StreamSession::set_left() {
  if (!fork_guard_.is_here()) return;
  MutexLock lock(mutex_);
  left_ = true;
}

Status StreamSession::status() const {
  if (!fork_guard_.is_here()) return CheckIsHere();
  MutexLock lock(mutex_);
  return over_;
}

bool StreamSession::connected() const {
  if (!fork_guard_.is_here()) return false;
  MutexLock lock(mutex_);
  return open_;
}

bool StreamSession::judges_groups() const {
  if (!fork_guard_.is_here()) return false;
  MutexLock lock(mutex_);
  return judges_groups_;
}

uint64_t StreamSession::epoch() const {
  if (!fork_guard_.is_here()) return 0;
  MutexLock lock(mutex_);
  return epoch_;
}

std::string StreamSession::Coordinator() const {
  return Coordinator(endpoint_.ToString());
}

std::string StreamSession::Coordinator(absl::string_view address) const {
  std::string text = absl::StrCat("coordinator at ", address);
  if (!options_.coordinator_note.empty()) {
    absl::StrAppend(&text, " (", options_.coordinator_note, ")");
  }
  return text;
}

std::string StreamSession::Tried() const {
  if (!absl::StrContains(options_.address, ',')) return "";
  return absl::StrCat("; tried ", base::Printable(options_.address));
}

void StreamSession::Complete(v1::StreamResponse& response) {
  // The events to wake; nearly always one.
  absl::InlinedVector<std::shared_ptr<BatchEvent>, 4> events;
  {
    MutexLock lock(mutex_);
    size_t callers = 0;
    for (v1::Result& result : *response.mutable_results()) {
      Status status;
      if (result.has_status()) status = v1::FromWire(result.status());
      const PendingOperationPtr pending =
          operations_.Complete(std::move(result));
      if (pending == nullptr) continue;
      ++callers;
      if (std::find(events.begin(), events.end(), pending->batch_event) ==
          events.end()) {
        events.push_back(pending->batch_event);
      }
      pending->status = std::move(status);
      pending->SetDone();
    }
    answered_ = answered_ || response.results_size() > 0;
    if (callers > 0) batch_window_.Woke(callers, Clock::now());
  }
  for (const std::shared_ptr<BatchEvent>& batch_event : events)
    batch_event->WakeAll();
}

void StreamSession::End(const Status& why) {
  std::vector<PendingOperationPtr> failed;
  bool tell = false;
  {
    MutexLock lock(mutex_);
    if (!over_.ok()) return;
    over_ = why;
    failed = operations_.FailAll(why);
    tell = !closing_ && !left_ && options_.on_over != nullptr;
    changed_.NotifyAll();
  }
  for (const PendingOperationPtr& pending : failed)
    pending->batch_event->WakeAll();
  if (tell) options_.on_over(why);
}

// The threads of a session: one connects and polls, the other sends heartbeats.

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The limit of a connection attempt, including the welcome.
constexpr milliseconds kAttemptMax = seconds(10);
// The limit of an attempt at the end of give_up_after.
constexpr milliseconds kLastAttempt = seconds(1);
// The limit of one message, on the slowest usable link.
constexpr milliseconds kWriteMax = seconds(20);
constexpr milliseconds kProbeMax = seconds(2);
constexpr milliseconds kProbeMin{100};
// A connection that lasts this long resets the back-off, even without calls.
constexpr milliseconds kOfUse = seconds(1);
// How often the heartbeat thread looks for stuck attempts and writes.
constexpr milliseconds kWatch = seconds(1);

Status WithPrefix(absl::string_view prefix, const Status& status) {
  Status prefixed(status.code(), absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload(
      [&](const std::string& url, const std::string& payload) {
        prefixed.SetPayload(url, payload);
      });
  return prefixed;
}

// Whether another attempt would get the same error.
bool EndsSession(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnauthenticated:
    case StatusCode::kUnimplemented:
    case StatusCode::kAborted:
      return true;
    default:
      return false;
  }
}

}  // namespace

v1::StreamRequest StreamSession::HelloMessage() const {
  v1::StreamRequest request;
  v1::Caller& caller = *request.mutable_hello()->mutable_caller();
  caller.set_job(options_.job);
  caller.set_member(options_.member);
  caller.set_incarnation(incarnation_);
  v1::RegisterRequest& registration =
      *request.mutable_hello()->mutable_registration();
  *registration.mutable_caller() = caller;
  registration.set_host(host_);
  registration.set_pid(options_.pid);
  registration.set_debug_address(options_.debug_address);
  EscapeTexts(&request);
  return request;
}

void StreamSession::Run() {
  for (;;) {
    Status why = ConnectAndServe();
    if (relay_.failed()) continue;
    if (EndsSession(why) && !HasNewToken(why)) {
      return End(WithPrefix(Coordinator(search_.current().ToString()), why));
    }
    if (!RetryLater(std::move(why))) return;
  }
}

Status StreamSession::ConnectAndServe() {
  const Endpoint& endpoint = search_.current();
  const StatusOr<ConnectionSecurity> security = security_.Load(endpoint);
  // The files were valid at the start: they are just being replaced. Or a
  // coordinator has named one to which the token must not go.
  if (!security.ok()) {
    Status why = UnavailableError(security.status().message());
    Disconnect(why);
    return why;
  }
  authorization_ = security->authorization();
  Connection connection(
      relay_.Next(endpoint, *security, options_.silence_max, unserved_));
  Status why = Open(connection);
  if (why.ok()) {
    const Instant since = Clock::now();
    listening_ = true;
    why = Serve(connection);
    MutexLock lock(mutex_);
    // A connection that breaks at once does not reset the back-off.
    if (answered_ || Clock::now() - since > kOfUse) {
      search_.Found();
      unserved_ = 0;
    }
  }
  why = relay_.Ended(connection, std::move(why));
  Disconnect(why);
  return why;
}

// Whether the token's file has another token than the refused one.
bool StreamSession::HasNewToken(const Status& refusal) const {
  if (!IsUnauthenticated(refusal)) return false;
  const StatusOr<ConnectionSecurity> security =
      security_.Load(search_.current());
  return !security.ok() || security->authorization() != authorization_;
}

Status StreamSession::Open(Connection& connection) {
  {
    MutexLock lock(mutex_);
    if (closing_) return CancelledError("closing");
    connection_ = &connection;
    answered_ = false;
    attempt_since_ = Clock::now();
  }
  connection.Start(HelloMessage());
  if (!AwaitMessage(connection)) {
    const Status why = connection.Finish();
    return relay_.in_use() ? why : Explain(why);
  }
  Status welcomed = Welcome(connection.received());
  if (!welcomed.ok()) {
    // The new coordinator's members must not see this one as lost.
    v1::StreamRequest goodbye;
    *goodbye.mutable_heartbeat() = CurrentProgress();
    goodbye.add_operations()->mutable_leave()->set_reason(
        "was a member of the coordinator before its restart");
    while (connection.writing()) connection.Poll(Instant::max());
    connection.Write(goodbye);
    AwaitMessage(connection);
    connection.Cancel();
    while (connection.Poll(Instant::max()) != Connection::Event::kBroken) {
    }
    connection.Finish().IgnoreError();
    return welcomed;
  }
  DeliverEvents(connection.received());
  Complete(connection.received());
  return OkStatus();
}

Status StreamSession::Explain(const Status& failure) const {
  if (v1::GetJobOwner(failure)) return failure;
  {
    MutexLock lock(mutex_);
    if (closing_ || epoch_ != 0) return security_.WithHandshakeHint(failure);
  }
  return security_.Explain(failure, search_.current());
}

Status StreamSession::Welcome(const v1::StreamResponse& response) {
  if (!response.has_welcome()) {
    return UnavailableError("the answer to the hello is not a welcome");
  }
  const v1::Welcome& welcome = response.welcome();
  MutexLock lock(mutex_);
  if (job_epoch_ != 0 && job_epoch_ != welcome.job_epoch()) {
    return AbortedError(
        "it was restarted, and what it held is lost (keys, members, ranks): "
        "connect again and form a new group");
  }
  if (epoch_ != 0) TellReconnected(welcome);
  served_by_ = endpoint_.ToString();
  epoch_ = welcome.coordinator_epoch();
  job_epoch_ = welcome.job_epoch();
  judges_groups_ = welcome.judges_groups();
  const auto& lease = welcome.registration().lease();
  lease_ = seconds(lease.seconds()) + milliseconds(lease.nanos() / 1'000'000);
  open_ = true;
  if (welcome.message_bytes_max() > 0) {
    for (const PendingOperationPtr& failed : operations_.LimitMessages(
             static_cast<size_t>(welcome.message_bytes_max()))) {
      failed->batch_event->WakeAll();
    }
  }
  // The hello may still be under way. Waiting operations follow it.
  flushing_ = connection_->writing();
  writing_since_ = Clock::now();
  trouble_ = OkStatus();
  changed_.NotifyAll();
  if (CanWrite() && operations_.HasWaiting()) WriteWhatWaits(writing_since_);
  return OkStatus();
}

Status StreamSession::Serve(Connection& connection) {
  MutexLock lock(mutex_);
  milliseconds pause{0};
  uint64_t lone_calls_seen = lone_calls_;
  while (open_ || polling_ || writing_) {
    const bool calls_come =
        std::exchange(lone_calls_seen, lone_calls_) != lone_calls_;
    if (calls_come && open_ && !has_events_ && !closing_ &&
        (polling_ || operations_.unanswered() == 0)) {
      pause = std::clamp(2 * pause, kStandBackMin, kStandBackMax);
      turn_.WaitUntil(mutex_, Clock::now() + pause);
    } else if (polling_ || !open_) {
      // One call has lasted for the whole pause: it waits for something.
      waits_to_poll_ = true;
      turn_.Wait(mutex_);
      waits_to_poll_ = false;
    } else {
      pause = milliseconds(0);
      polling_ = true;
      const bool left_to_me = std::exchange(has_events_, false);
      mutex_.Unlock();
      const Connection::Event event = left_to_me
                                          ? Connection::Event::kReceived
                                          : connection.Poll(Instant::max());
      // Before the results: a caller that learns from a barrier that a rank is
      // gone can then find the cause.
      if (event == Connection::Event::kReceived) {
        DeliverEvents(connection.received());
      }
      mutex_.Lock();
      const bool one_caller = operations_.unanswered() == 1;
      Handle(connection, event);
      polling_ = false;
      if (one_caller && operations_.unanswered() == 0) ++lone_calls_;
    }
  }
  mutex_.Unlock();
  Status why = connection.Finish();
  mutex_.Lock();
  if (why.ok()) return UnavailableError("the coordinator hung up");
  return why;
}

bool StreamSession::AwaitMessage(Connection& connection) {
  for (;;) {
    switch (connection.Poll(Instant::max())) {
      case Connection::Event::kReceived:
        return true;
      case Connection::Event::kBroken:
        return false;
      default:
        break;
    }
  }
}

void StreamSession::DeliverEvents(const v1::StreamResponse& response) {
  if (!options_.on_event) return;
  for (const v1::MemberEvent& event : response.events()) {
    options_.on_event(FromProto(event));
  }
}

void StreamSession::Disconnect(const Status& why) {
  MutexLock lock(mutex_);
  open_ = false;
  connection_ = nullptr;
  operations_.Requeue();
  // A welcome had cleared trouble_: the member was connected.
  if (trouble_.ok()) {
    const bool first_attempt = epoch_ == 0;
    if (!first_attempt) {
      down_since_ = Clock::now();
      told_disconnected_ = false;
      const std::optional<Endpoint> owner = NamedOwner(why);
      const bool moved = owner && owner->ToString() != endpoint_.ToString();
      if (!moved && !closing_ && !left_) TellDisconnected(why);
    }
    trouble_ = why;
  }
}

bool StreamSession::RetryLater(Status why) {
  if (IsCancelled(why)) {
    why = UnavailableError("no answer to the connection attempt");
  }
  // A coordinator that says who has the job is there.
  bool referred = v1::GetJobOwner(why).has_value();
  if (referred) {
    listening_ = true;
    ++unserved_;
  }
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (closing_) return false;
    }
    const std::string asked = search_.current().ToString();
    // A closed port answers a probe at once and at no cost; a stream is tried
    // when something listens again. The system's reason is also shorter and
    // clearer than gRPC's.
    if (!referred) {
      const Status probed = Probe(search_.current(), ProbeTime());
      if (!probed.ok()) {
        why = probed;
        listening_ = false;
        unreached_ = asked;
      } else if (!listening_) {
        listening_ = true;
        return true;
      } else {
        ++unserved_;
      }
    }
    if (GiveUp(why)) return false;
    const milliseconds pause = search_.Next(why);
    const std::string next = search_.current().ToString();
    // A named coordinator is believed to listen. One that did not a moment ago
    // is probed: an attempt takes longer to find that its host is gone.
    if (next != asked) listening_ = referred && next != unreached_;
    MutexLock lock(mutex_);
    if (pause.count() > 0) {
      if (epoch_ == 0) {
        TellUnreached(why, referred);
      } else if (!referred && !told_disconnected_ && !left_) {
        TellDisconnected(why);
      }
    }
    trouble_ = why;
    const Instant until = std::min(Clock::now() + pause, GivesUpAt());
    while (!closing_ && Clock::now() < until) {
      changed_.WaitUntil(mutex_, until);
    }
    if (closing_) return false;
    endpoint_ = search_.current();
    if (listening_) return true;
    referred = false;
  }
}

void StreamSession::TellDisconnected(const Status& why) {
  told_disconnected_ = true;
  LOG(WARNING) << "coordinator disconnected: address="
               << base::LogValue(endpoint_.ToString())
               << " cause=" << base::Quote(why.message());
}

void StreamSession::TellReconnected(const v1::Welcome& welcome) {
  const std::string now_at = endpoint_.ToString();
  if (!told_disconnected_) {
    if (now_at == served_by_) return;
    LOG(INFO) << "job moved: from=" << base::LogValue(served_by_)
              << " to=" << base::LogValue(now_at)
              << " away_for=" << FormatSince(down_since_, Clock::now());
    return;
  }
  // Another coordinator has an epoch of its own.
  const bool restarted =
      now_at == served_by_ && epoch_ != welcome.coordinator_epoch();
  LOG(WARNING) << "coordinator reconnected: address=" << base::LogValue(now_at)
               << " away_for=" << FormatSince(down_since_, Clock::now())
               << (restarted ? " restarted=1" : "");
}

void StreamSession::TellUnreached(const Status& why, bool referred) {
  const Instant now = Clock::now();
  // A coordinator may need a moment to load the job.
  if (referred && now < trying_since_ + kOfUse) return;
  if (now < tell_unreached_at_) return;
  const bool again = tell_unreached_at_ != Instant::min();
  tell_unreached_at_ = now + options_.unreached_log_interval;
  LOG(WARNING) << "coordinator not reached: address="
               << base::LogValue(options_.address)
               << " cause=" << base::Quote(why.message())
               << (again ? " tried_for=" + FormatSince(trying_since_, now) : "")
               << " gives_up_after="
               << FormatDuration(options_.connect_timeout);
}

Instant StreamSession::GivesUpAt() const {
  if (options_.give_up_after.count() == 0 || epoch_ == 0) return Instant::max();
  return down_since_ + options_.give_up_after;
}

milliseconds StreamSession::ProbeTime() const {
  MutexLock lock(mutex_);
  const Instant now = Clock::now();
  // Short near the end of give_up_after: the coordinator may be back.
  if (GivesUpAt() >= now + kProbeMax) return kProbeMax;
  return std::max(kProbeMin,
                  std::chrono::ceil<milliseconds>(GivesUpAt() - now));
}

bool StreamSession::GiveUp(const Status& why) {
  Status gone;
  {
    MutexLock lock(mutex_);
    const Instant now = Clock::now();
    if (now < GivesUpAt()) return false;
    gone = UnavailableError(
        absl::StrCat(Coordinator(), " is gone: ", why.message(), " for ",
                     FormatSince(down_since_, now), Tried()));
  }
  End(gone);
  return true;
}

v1::HeartbeatRequest StreamSession::CurrentProgress() const {
  v1::HeartbeatRequest heartbeat;
  if (options_.progress) heartbeat = ToHeartbeat(options_.progress());
  EscapeTexts(&heartbeat);
  return heartbeat;
}

void StreamSession::Beat() {
  MutexLock lock(mutex_);
  Instant next_look = Clock::now();
  Instant last_beat = Instant::min();
  std::string last_progress;
  while (!closing_ && over_.ok()) {
    const Instant now = Clock::now();
    CancelIfStuck(now);
    if (open_ && now >= next_look) {
      mutex_.Unlock();
      v1::HeartbeatRequest heartbeat = CurrentProgress();
      // Without the running time, which is no progress.
      std::string progress = Fingerprint(heartbeat);
      mutex_.Lock();
      // Often while there is progress, so that a dead member's last progress is
      // recent; else often enough for the lease.
      if (progress != last_progress || last_beat == Instant::min() ||
          now - last_beat >= lease_ / 3) {
        heartbeat_ = std::move(heartbeat);
        heartbeat_due_ = true;
        last_beat = now;
        last_progress = std::move(progress);
      }
      next_look = now + (lease_.count() > 0 ? lease_ / 10 : kWatch);
      continue;
    }
    if (heartbeat_due_ && CanWrite()) WriteWhatWaits(now);
    changed_.WaitUntil(
        mutex_, std::min(now + kWatch, open_ ? next_look : Instant::max()));
  }
}

void StreamSession::CancelIfStuck(Instant now) {
  if (connection_ == nullptr) return;
  const bool attempt_stuck =
      !open_ && (now - attempt_since_ > kAttemptMax ||
                 (now - attempt_since_ > kLastAttempt && now >= GivesUpAt()));
  const bool write_stuck = flushing_ && now - writing_since_ > kWriteMax;
  if (attempt_stuck || write_stuck) connection_->Cancel();
}

}  // namespace muster::internal
