#include "client/control/stream_session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "client/control/channel.h"
#include "client/control/channel_security.h"
#include "client/control/convert.h"
#include "base/process_limits.h"
#include "muster/v1/session.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How much longer than its deadline a call waits for the coordinator's own
// answer to that deadline.
constexpr milliseconds kAnswerSlack = seconds(1);

absl::Status CancelledByCaller() {
  return absl::CancelledError("cancelled by the caller");
}

uint64_t RandomNumber() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// Zero means "no incarnation" on the wire.
uint64_t NewIncarnation() {
  uint64_t incarnation = 0;
  while (incarnation == 0) incarnation = RandomNumber();
  return incarnation;
}

// The sessions that there are, those of the processes that forked this one off
// too, and where the last one was made (Birth::Forks).
constinit std::atomic<int> g_sessions{0};
constinit std::atomic<uint32_t> g_forks_of_last{0};

// A session that this process has inherited has left gRPC without its threads:
// another one here would wait for ever.
absl::Status CheckNoneIsInherited() {
  if (g_sessions.load() == 0 || g_forks_of_last.load() == Birth::Forks()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "this process was forked off by one that had a session, without its "
      "threads: fork before the first session, or execute a program");
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamSession>> StreamSession::Connect(
    SessionOptions options) {
  const absl::Status own = CheckNoneIsInherited();
  if (!own.ok()) return own;
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint(options.address);
  if (!endpoint.ok()) return endpoint.status();
  const absl::Status room = CheckProcessLimits();
  if (!room.ok()) return room;
  // Later ones that fail are tried again.
  absl::StatusOr<ChannelSecurity> security = ChannelSecurity::Take(options);
  if (!security.ok()) return security.status();
  const absl::Status loaded = security->Load(*endpoint).status();
  if (!loaded.ok()) return loaded;
  std::unique_ptr<StreamSession> session(new StreamSession(
      std::move(options), *std::move(security), *std::move(endpoint)));
  const Deadline deadline =
      Deadline::After(session->options_.connect_timeout,
                      session->options_.connect_timeout_name);
  try {
    session->reader_ = std::thread([raw = session.get()] { raw->Run(); });
    session->heart_ = std::thread([raw = session.get()] { raw->Beat(); });
  } catch (const std::system_error& error) {
    session->Close();
    return absl::ResourceExhaustedError(DescribeSystemError(error));
  }
  absl::Status failure;
  {
    const std::stop_callback on_stop(session->options_.stop_connecting, [&] {
      MutexLock lock(session->mutex_);
      session->changed_.NotifyAll();
    });
    MutexLock lock(session->mutex_);
    // One that broke at once counts, too: it comes back by itself, and whoever
    // uses it hears if it does not.
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
                             Endpoint endpoint)
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
      endpoint_(std::move(endpoint)),
      incarnation_(NewIncarnation()),
      host_(HostName()),
      created_at_(Clock::now()),
      down_since_(created_at_) {
  g_sessions.fetch_add(1);
  g_forks_of_last.store(Birth::Forks());
}

StreamSession::~StreamSession() {
  Close();
  g_sessions.fetch_sub(1);
}

absl::Status StreamSession::CheckIsHere() const {
  if (birth_.is_here()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("session with ", Coordinator(), kIsParents));
}

void StreamSession::Close() {
  if (!birth_.is_here()) return;
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
  End(absl::CancelledError(
      absl::StrCat("session with ", Coordinator(), " was closed")));
}

absl::StatusOr<v1::Result> StreamSession::Call(v1::Operation operation,
                                               const Deadline& deadline,
                                               Canceller* canceller) {
  if (!birth_.is_here()) return CheckIsHere();
  EscapeTexts(&operation);
  // What the others read of this process then is how far it has come now.
  const bool ends = operation.has_leave() || operation.has_report_failure();
  v1::HeartbeatRequest progress;
  if (ends) progress = CurrentProgress();
  const auto pending =
      std::make_shared<PendingOperation>(std::move(operation), deadline);
  // Until when it sleeps: its deadline, or the end of the gathering that it
  // began.
  Instant until = deadline.at;
  {
    MutexLock lock(mutex_);
    if (!over_.ok()) return over_;
    absl::Status added = operations_.Add(pending);
    if (!added.ok()) return added;
    if (ends) {
      heartbeat_ = std::move(progress);
      heartbeat_due_ = true;
    }
    const Instant now = Clock::now();
    gathering_.CameBack(operations_.under_way(), now);
    if (gathering_.Expects(now)) {
      if (!ends_gathering_) until = std::min(until, gathering_.until());
      ends_gathering_ = true;
    } else if (CanWrite()) {
      WriteWhatWaits(now);
    }
    if (open_ && !polling_) {
      // Who can be cancelled must not sleep in the transport.
      if (canceller == nullptr && operations_.unanswered() == 1 &&
          !ends_gathering_) {
        PollFor(*pending);
      } else {
        turn_.NotifyOne();
      }
    }
  }
  if (canceller != nullptr) canceller->Begin(pending);
  absl::Status failure = Await(*pending, until, deadline);
  if (canceller != nullptr) canceller->End();
  if (!failure.ok()) return failure;
  if (!pending->status.ok()) return pending->status;
  return std::move(pending->result);
}

absl::Status StreamSession::Await(PendingOperation& pending, Instant until,
                                  const Deadline& deadline) {
  bool slack_used = false;
  for (;;) {
    const uint32_t seen = pending.wave->Look();
    if (pending.done()) return absl::OkStatus();
    if (!pending.cancelled.load()) pending.wave->Sleep(seen, until);
    if (pending.done()) return absl::OkStatus();
    const Instant now = Clock::now();
    const bool cancelled = pending.cancelled.load();
    if (now < until && !cancelled) continue;
    MutexLock lock(mutex_);
    if (pending.done()) return absl::OkStatus();
    if (cancelled) {
      operations_.Abandon(pending);
      if (CanWrite() && operations_.HasWaiting()) WriteWhatWaits(now);
      return CancelledByCaller();
    }
    if (until < deadline.at) {
      // The others took their time.
      until = deadline.at;
      if (CanWrite() && operations_.HasWaiting()) WriteWhatWaits(now);
    } else if (!slack_used && open_ &&
               pending.state == PendingOperation::State::kSent) {
      slack_used = true;
      until += kAnswerSlack;
    } else {
      absl::Status failure = NoAnswer(deadline, now);
      operations_.Abandon(pending);
      // Also in place of this caller, if it was to end the gathering.
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
      return;  // All that waited was given up.
    }
    writing_ = true;
    flushing_ = true;
    writing_since_ = now;
    Connection* const connection = connection_;
    mutex_.Unlock();
    connection->Write(batch.request());
    mutex_.Lock();
    writing_ = false;
    // The thread that ends the connection waits for this.
    if (!open_) turn_.NotifyOne();
    // Who polls may have seen the end of the write before this.
  } while (WriteIsDue(Clock::now()));
}

bool StreamSession::WriteIsDue(Instant now) {
  if (!CanWrite()) return false;
  if (heartbeat_due_) return true;
  return operations_.HasWaiting() &&
         !(ends_gathering_ && gathering_.Expects(now));
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
  // What came while the stream was busy.
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
      // The user's callbacks are for the session's own thread.
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

absl::Status StreamSession::NoAnswer(const Deadline& deadline,
                                     Instant now) const {
  const milliseconds waited = deadline.timeout - deadline.Remaining(now);
  if (open_) {
    return absl::UnavailableError(
        absl::StrCat(Coordinator(), ": no answer for ", FormatDuration(waited),
                     " ", deadline.Blame()));
  }
  const milliseconds down = std::min(
      waited, std::chrono::duration_cast<milliseconds>(now - down_since_));
  return absl::UnavailableError(absl::StrCat(
      Coordinator(), ": ",
      trouble_.ok() ? "no connection" : std::string(trouble_.message()),
      " for ", FormatDuration(down), " ", deadline.Blame()));
}

bool StreamSession::has_left() const {
  if (!birth_.is_here()) return true;
  MutexLock lock(mutex_);
  return left_;
}

void StreamSession::set_left() {
  if (!birth_.is_here()) return;
  MutexLock lock(mutex_);
  left_ = true;
}

absl::Status StreamSession::status() const {
  if (!birth_.is_here()) return CheckIsHere();
  MutexLock lock(mutex_);
  return over_;
}

bool StreamSession::connected() const {
  if (!birth_.is_here()) return false;
  MutexLock lock(mutex_);
  return open_;
}

uint64_t StreamSession::epoch() const {
  if (!birth_.is_here()) return 0;
  MutexLock lock(mutex_);
  return epoch_;
}

std::string StreamSession::Coordinator() const {
  std::string text = absl::StrCat("coordinator at ", endpoint_.ToString());
  if (!options_.coordinator_note.empty()) {
    absl::StrAppend(&text, " (", options_.coordinator_note, ")");
  }
  return text;
}

void StreamSession::Complete(v1::StreamResponse& response) {
  // Those whose callers are to be woken; nearly always one.
  absl::InlinedVector<std::shared_ptr<Wave>, 4> waves;
  {
    MutexLock lock(mutex_);
    size_t callers = 0;
    for (v1::Result& result : *response.mutable_results()) {
      absl::Status status;
      if (result.has_status()) status = v1::FromWire(result.status());
      const PendingOperationPtr pending =
          operations_.Complete(std::move(result));
      if (pending == nullptr) continue;
      ++callers;
      if (std::find(waves.begin(), waves.end(), pending->wave) == waves.end()) {
        waves.push_back(pending->wave);
      }
      pending->status = std::move(status);
      pending->SetDone();
    }
    answered_ = answered_ || response.results_size() > 0;
    if (callers > 0) gathering_.Woke(callers, Clock::now());
  }
  for (const std::shared_ptr<Wave>& wave : waves) wave->WakeAll();
}

void StreamSession::End(const absl::Status& why) {
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
  for (const PendingOperationPtr& pending : failed) pending->wave->WakeAll();
  if (tell) options_.on_over(why);
}

}  // namespace muster::internal
