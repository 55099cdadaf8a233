// What the threads of a session do: the one that connects and serves the
// connection, and the heart.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/convert.h"
#include "client/control/stream_session.h"
#include "glog/logging.h"
#include "muster/v1/session.pb.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A connection attempt, the welcome included.
constexpr milliseconds kAttemptMax = seconds(10);
// The one during which the session would be over.
constexpr milliseconds kLastAttempt = seconds(1);
// One message, on the slowest link that is of any use.
constexpr milliseconds kWriteMax = seconds(20);
constexpr milliseconds kProbeMax = seconds(2);
constexpr milliseconds kProbeMin{100};
// A connection that lasted so long was of use, even if nobody asked anything.
constexpr milliseconds kOfUse = seconds(1);
// How often the heart looks for what is stuck.
constexpr milliseconds kWatch = seconds(1);

absl::Status WithPrefix(absl::string_view prefix, const absl::Status& status) {
  absl::Status prefixed(status.code(),
                        absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    prefixed.SetPayload(url, payload);
  });
  return prefixed;
}

// Answers that another attempt would get again.
bool EndsSession(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kAborted:
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
  Backoff backoff(incarnation_);
  for (;;) {
    absl::Status why = ConnectAndServe(backoff);
    if (EndsSession(why) && !HasNewToken(why)) {
      return End(WithPrefix(Coordinator(), why));
    }
    if (!RetryLater(std::move(why), backoff)) return;
  }
}

absl::Status StreamSession::ConnectAndServe(Backoff& backoff) {
  const absl::StatusOr<ConnectionSecurity> security = security_.Load(endpoint_);
  // They were good at the start, so they are being replaced just now.
  if (!security.ok()) {
    absl::Status why = absl::UnavailableError(security.status().message());
    Disconnect(why);
    return why;
  }
  authorization_ = security->authorization();
  Connection connection(endpoint_, *security, options_.silence_max);
  absl::Status why = Open(connection);
  if (why.ok()) {
    const Instant since = Clock::now();
    listening_ = true;
    why = Serve(connection);
    MutexLock lock(mutex_);
    // One that breaks at once, time and again, is no use.
    if (answered_ || Clock::now() - since > kOfUse) backoff.Reset();
  }
  Disconnect(why);
  return why;
}

// Whether the file of the token holds another one than that which was refused.
bool StreamSession::HasNewToken(const absl::Status& refusal) const {
  if (!absl::IsUnauthenticated(refusal)) return false;
  const absl::StatusOr<ConnectionSecurity> security = security_.Load(endpoint_);
  return !security.ok() || security->authorization() != authorization_;
}

absl::Status StreamSession::Open(Connection& connection) {
  {
    MutexLock lock(mutex_);
    if (closing_) return absl::CancelledError("closing");
    connection_ = &connection;
    answered_ = false;
    attempt_since_ = Clock::now();
  }
  connection.Start(HelloMessage());
  if (!AwaitMessage(connection)) {
    return Explain(connection.Finish());
  }
  absl::Status welcomed = Welcome(connection.received());
  if (!welcomed.ok()) {
    // The newcomer's members shall not see this one as lost.
    v1::StreamRequest farewell;
    *farewell.mutable_heartbeat() = CurrentProgress();
    farewell.add_operations()->mutable_leave()->set_reason(
        "was a member of the coordinator before its restart");
    while (connection.writing()) connection.Poll(Instant::max());
    connection.Write(farewell);
    AwaitMessage(connection);
    connection.Cancel();
    while (connection.Poll(Instant::max()) != Connection::Event::kBroken) {
    }
    connection.Finish().IgnoreError();
    return welcomed;
  }
  DeliverEvents(connection.received());
  Complete(connection.received());
  return absl::OkStatus();
}

absl::Status StreamSession::Explain(const absl::Status& failure) const {
  {
    MutexLock lock(mutex_);
    if (closing_ || epoch_ != 0) return security_.WithHandshakeHint(failure);
  }
  return security_.Explain(failure, endpoint_);
}

absl::Status StreamSession::Welcome(const v1::StreamResponse& response) {
  if (!response.has_welcome()) {
    return absl::UnavailableError("the answer to the hello is not a welcome");
  }
  const v1::Welcome& welcome = response.welcome();
  MutexLock lock(mutex_);
  if (job_epoch_ != 0 && job_epoch_ != welcome.job_epoch()) {
    return absl::AbortedError(
        "it was restarted, and what it held is lost (keys, members, ranks): "
        "connect again and form a new group");
  }
  if (epoch_ != 0) {
    // Whoever was told of the loss is told of its end.
    LOG(WARNING) << "coordinator reconnected: address="
                 << base::LogValue(options_.address)
                 << " away_for=" << FormatSince(down_since_, Clock::now())
                 << (epoch_ == welcome.coordinator_epoch() ? ""
                                                           : " restarted=1");
  }
  epoch_ = welcome.coordinator_epoch();
  job_epoch_ = welcome.job_epoch();
  const auto& lease = welcome.registration().lease();
  lease_ = seconds(lease.seconds()) + milliseconds(lease.nanos() / 1'000'000);
  open_ = true;
  if (welcome.message_bytes_max() > 0) {
    for (const PendingOperationPtr& failed : operations_.LimitMessages(
             static_cast<size_t>(welcome.message_bytes_max()))) {
      failed->wave->WakeAll();
    }
  }
  // The hello; what waits goes out when that is done.
  flushing_ = connection_->writing();
  writing_since_ = Clock::now();
  trouble_ = absl::OkStatus();
  changed_.NotifyAll();
  if (CanWrite() && operations_.HasWaiting()) WriteWhatWaits(writing_since_);
  return absl::OkStatus();
}

absl::Status StreamSession::Serve(Connection& connection) {
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
      // One call for the whole pause: it waits for something.
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
      // Before the results: who learns from a barrier that a rank is gone can
      // then be told why.
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
  absl::Status why = connection.Finish();
  mutex_.Lock();
  if (why.ok()) return absl::UnavailableError("the coordinator hung up");
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

void StreamSession::Disconnect(const absl::Status& why) {
  MutexLock lock(mutex_);
  open_ = false;
  connection_ = nullptr;
  operations_.Requeue();
  // A welcome cleared it: this connection has been of use.
  if (trouble_.ok()) {
    const bool first_attempt = epoch_ == 0;
    if (!first_attempt) {
      down_since_ = Clock::now();
      if (!closing_ && !left_) {
        LOG(WARNING) << "coordinator disconnected: address="
                     << base::LogValue(options_.address)
                     << " cause=" << base::Quote(why.message());
      }
    }
    trouble_ = why;
  }
}

bool StreamSession::RetryLater(absl::Status why, Backoff& backoff) {
  if (absl::IsCancelled(why)) {
    why = absl::UnavailableError("no answer to the connection attempt");
  }
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (closing_) return false;
    }
    // A closed port answers a probe at once and costs nobody anything; a
    // stream is tried when somebody listens again. The system's own reason is
    // also shorter than the transport's, and says more.
    const absl::Status probed = Probe(endpoint_, ProbeTime());
    if (!probed.ok()) {
      why = probed;
      listening_ = false;
    } else if (!listening_) {
      listening_ = true;
      return true;
    }
    if (GiveUp(why)) return false;
    MutexLock lock(mutex_);
    if (epoch_ == 0) TellUnreached(why);
    trouble_ = why;
    const Instant next = std::min(Clock::now() + backoff.Next(), GivesUpAt());
    while (!closing_ && Clock::now() < next) {
      changed_.WaitUntil(mutex_, next);
    }
    if (closing_) return false;
    if (listening_) return true;
  }
}

void StreamSession::TellUnreached(const absl::Status& why) {
  const Instant now = Clock::now();
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
  // One of a moment, if it is time: the coordinator may be back.
  if (GivesUpAt() >= now + kProbeMax) return kProbeMax;
  return std::max(kProbeMin,
                  std::chrono::ceil<milliseconds>(GivesUpAt() - now));
}

bool StreamSession::GiveUp(const absl::Status& why) {
  absl::Status gone;
  {
    MutexLock lock(mutex_);
    const Instant now = Clock::now();
    if (now < GivesUpAt()) return false;
    gone = absl::UnavailableError(
        absl::StrCat(Coordinator(), " is gone: ", why.message(), " for ",
                     FormatSince(down_since_, now)));
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
      // What runs may have run for longer; that alone is no news.
      std::string progress = Fingerprint(heartbeat);
      mutex_.Lock();
      // Often while there is progress, so that a dead member's last one is
      // fresh; else often enough for the lease.
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
