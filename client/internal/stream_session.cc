#include "client/internal/stream_session.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/internal/convert.h"
#include "glog/logging.h"
#include "grpcpp/grpcpp.h"
#include "muster/v1/session.grpc.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

using dataplane::MutexLock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// How much longer than its deadline a call waits for the coordinator's own
// answer to that deadline.
constexpr milliseconds kAnswerSlack = seconds(1);
// A connection attempt, the welcome included.
constexpr milliseconds kAttemptMax = seconds(10);
// One message, on the slowest link that is of any use.
constexpr milliseconds kWriteMax = seconds(20);
constexpr milliseconds kProbeMax = seconds(2);
// How often the heart looks for what is stuck.
constexpr milliseconds kWatch = seconds(1);

uint64_t Random64() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// Zero means "no incarnation" on the wire.
uint64_t NewIncarnation() {
  uint64_t incarnation = 0;
  while (incarnation == 0) incarnation = Random64();
  return incarnation;
}

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

// A new channel for every connection: it resolves the name anew, and no
// back-off of an earlier one holds it up.
std::shared_ptr<grpc::Channel> NewChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  // A host that vanished without a word is noticed within 30 s, also when
  // nothing is being sent.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", endpoint.ToString()),
                                   grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace

struct StreamSession::Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::SessionService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>>
      stream;
};

absl::StatusOr<std::unique_ptr<StreamSession>> StreamSession::Connect(
    SessionOptions options) {
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint(options.address);
  if (!endpoint.ok()) return endpoint.status();
  const Deadline deadline =
      Deadline::After(options.connect_timeout, options.connect_timeout_name);
  std::unique_ptr<StreamSession> session(
      new StreamSession(std::move(options), *std::move(endpoint)));
  session->reader_ = std::thread([raw = session.get()] { raw->Run(); });
  session->heart_ = std::thread([raw = session.get()] { raw->Beat(); });
  absl::Status failure;
  {
    MutexLock lock(session->mutex_);
    while (!session->open_ && session->over_.ok() && failure.ok()) {
      session->changed_.WaitUntil(session->mutex_, deadline.at);
      if (!session->open_ && deadline.Passed(Clock::now())) {
        PendingOperation connecting;
        connecting.deadline = deadline;
        failure = session->NoAnswer(connecting, Clock::now());
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

StreamSession::StreamSession(SessionOptions options, Endpoint endpoint)
    : options_([&] {
        if (options.member.empty()) {
          options.member = absl::StrCat(
              HostName(), "-", getpid(), "-",
              absl::Hex(static_cast<uint32_t>(Random64()), absl::kZeroPad8));
        }
        return std::move(options);
      }()),
      endpoint_(std::move(endpoint)),
      incarnation_(NewIncarnation()),
      host_(HostName()),
      created_at_(Clock::now()),
      down_since_(created_at_) {}

StreamSession::~StreamSession() { Close(); }

void StreamSession::Close() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    if (connection_ != nullptr) connection_->context.TryCancel();
    changed_.NotifyAll();
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
                                               const Deadline& deadline) {
  auto pending = std::make_shared<PendingOperation>();
  pending->operation = std::move(operation);
  pending->deadline = deadline;
  Instant until = deadline.at;
  bool slack_used = false;
  MutexLock lock(mutex_);
  if (!over_.ok()) return over_;
  if (absl::Status added = operations_.Add(pending); !added.ok()) return added;
  while (pending->state != PendingOperation::State::kDone) {
    if (CanWrite() && pending->state == PendingOperation::State::kWaiting) {
      WriteWhatWaits(pending.get());
      continue;
    }
    if (until == Instant::max()) {
      pending->wake.Wait(mutex_);
      continue;
    }
    pending->wake.WaitUntil(mutex_, until);
    const Instant now = Clock::now();
    if (now < until || pending->state == PendingOperation::State::kDone) {
      continue;
    }
    if (!slack_used && open_ &&
        pending->state == PendingOperation::State::kSent) {
      slack_used = true;
      until += kAnswerSlack;
      continue;
    }
    absl::Status failure = NoAnswer(*pending, now);
    operations_.Abandon(*pending);
    HandOver();
    return failure;
  }
  if (!pending->status.ok()) return pending->status;
  return std::move(pending->result);
}

bool StreamSession::CanWrite() const {
  return open_ && !writing_ && connection_ != nullptr;
}

void StreamSession::WriteWhatWaits(const PendingOperation* own) {
  using State = PendingOperation::State;
  while (CanWrite() && (operations_.HasWaiting() || heartbeat_due_) &&
         (own == nullptr || own->state != State::kDone)) {
    Batch batch;
    operations_.Pack(Clock::now(), batch);
    if (heartbeat_due_) {
      batch.request().mutable_heartbeat()->Swap(&heartbeat_);
      heartbeat_due_ = false;
    }
    if (batch.request().operations_size() == 0 &&
        !batch.request().has_heartbeat()) {
      continue;  // All that waited was given up.
    }
    writing_ = true;
    writing_since_ = Clock::now();
    Connection* const connection = connection_;
    mutex_.Unlock();
    const bool written = connection->stream->Write(batch.request());
    mutex_.Lock();
    writing_ = false;
    // The reading thread sees the end as well, and waits for this.
    if (!written) open_ = false;
    if (!open_) changed_.NotifyAll();
  }
  HandOver();
}

void StreamSession::HandOver() {
  if (!CanWrite() || !operations_.HasWaiting()) return;
  const PendingOperationPtr next = operations_.FirstWaiting();
  if (next != nullptr) {
    next->wake.NotifyOne();
  } else {
    changed_.NotifyAll();  // Cancellations have no caller; the heart has time.
  }
}

absl::Status StreamSession::NoAnswer(const PendingOperation& pending,
                                     Instant now) const {
  const Deadline& deadline = pending.deadline;
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
  MutexLock lock(mutex_);
  return left_;
}

void StreamSession::set_left() {
  MutexLock lock(mutex_);
  left_ = true;
}

absl::Status StreamSession::status() const {
  MutexLock lock(mutex_);
  return over_;
}

bool StreamSession::connected() const {
  MutexLock lock(mutex_);
  return open_;
}

uint64_t StreamSession::epoch() const {
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
  registration.set_pid(getpid());
  registration.set_debug_address(options_.debug_address);
  return request;
}

void StreamSession::Run() {
  Backoff backoff(Random64());
  for (;;) {
    Connection connection;
    absl::Status why = Open(connection);
    if (why.ok()) {
      backoff.Reset();
      listening_ = true;
      why = Read(connection);
    }
    Disconnect(connection, why);
    if (EndsSession(why)) {
      return End(WithPrefix(Coordinator(), why));
    }
    if (!RetryLater(std::move(why), backoff)) return;
  }
}

absl::Status StreamSession::Open(Connection& connection) {
  {
    MutexLock lock(mutex_);
    if (closing_) return absl::CancelledError("closing");
    connection_ = &connection;
    attempt_since_ = Clock::now();
  }
  connection.channel = NewChannel(endpoint_);
  connection.stub = v1::SessionService::NewStub(connection.channel);
  // The hello goes out with the headers, in one packet.
  connection.context.set_initial_metadata_corked(true);
  connection.stream = connection.stub->Stream(&connection.context);
  v1::StreamResponse response;
  if (!connection.stream->Write(HelloMessage()) ||
      !connection.stream->Read(&response)) {
    return v1::FromGrpc(connection.stream->Finish());
  }
  absl::Status welcomed = Welcome(response);
  if (!welcomed.ok()) {
    // The newcomer's members shall not see this one as lost.
    v1::StreamRequest farewell;
    farewell.add_operations()->mutable_leave()->set_reason(
        "was a member of the coordinator before its restart");
    if (connection.stream->Write(farewell)) connection.stream->Read(&response);
    connection.context.TryCancel();
    connection.stream->Finish().IgnoreError();
    return welcomed;
  }
  Deliver(response);
  return absl::OkStatus();
}

absl::Status StreamSession::Welcome(const v1::StreamResponse& response) {
  if (!response.has_welcome()) {
    return absl::UnavailableError("the answer to the hello is not a welcome");
  }
  const v1::Welcome& welcome = response.welcome();
  MutexLock lock(mutex_);
  if (epoch_ != 0 && epoch_ != welcome.coordinator_epoch()) {
    return absl::AbortedError(
        "it was restarted, and what it held is lost (keys, members, ranks): "
        "connect again and form a new group");
  }
  if (epoch_ != 0) {
    LOG(INFO) << "coordinator reconnected: address=" << options_.address
              << " away_for=" << FormatSince(down_since_, Clock::now());
  }
  epoch_ = welcome.coordinator_epoch();
  const auto& lease = welcome.registration().lease();
  lease_ = seconds(lease.seconds()) + milliseconds(lease.nanos() / 1'000'000);
  open_ = true;
  trouble_ = absl::OkStatus();
  changed_.NotifyAll();
  HandOver();
  return absl::OkStatus();
}

absl::Status StreamSession::Read(Connection& connection) {
  for (;;) {
    v1::StreamResponse response;
    if (!connection.stream->Read(&response)) break;
    Deliver(response);
  }
  {
    // The writer's part of the stream must be over before Finish.
    MutexLock lock(mutex_);
    open_ = false;
    while (writing_) changed_.Wait(mutex_);
  }
  absl::Status why = v1::FromGrpc(connection.stream->Finish());
  if (why.ok()) return absl::UnavailableError("the coordinator hung up");
  return why;
}

void StreamSession::Deliver(v1::StreamResponse& response) {
  // Before the results: who learns from a barrier that a rank is gone can then
  // be told why.
  for (const v1::MemberEvent& event : response.events()) {
    if (options_.on_event) options_.on_event(FromProto(event));
  }
  std::vector<PendingOperationPtr> done;
  done.reserve(response.results_size());
  {
    MutexLock lock(mutex_);
    for (v1::Result& result : *response.mutable_results()) {
      absl::Status status = v1::FromWire(result.status());
      PendingOperationPtr pending = operations_.Complete(std::move(result));
      if (pending == nullptr) continue;
      pending->status = std::move(status);
      done.push_back(std::move(pending));
    }
  }
  for (const PendingOperationPtr& pending : done) pending->wake.NotifyOne();
}

void StreamSession::Disconnect(Connection& connection,
                               const absl::Status& why) {
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
        LOG(WARNING) << "coordinator disconnected: address=" << options_.address
                     << " cause=" << why.message();
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
    const absl::Status probed = Probe(endpoint_, kProbeMax);
    if (!probed.ok()) {
      why = probed;
      listening_ = false;
    } else if (!listening_) {
      listening_ = true;
      return true;
    }
    if (GiveUp(why)) return false;
    MutexLock lock(mutex_);
    if (epoch_ == 0 && !told_unreached_) {
      told_unreached_ = true;
      LOG(WARNING) << "coordinator not reached: address=" << options_.address
                   << " cause=\"" << why.message() << "\" trying_for="
                   << FormatDuration(options_.connect_timeout);
    }
    trouble_ = why;
    const Instant next = Clock::now() + backoff.Next();
    while (!closing_ && Clock::now() < next) {
      changed_.WaitUntil(mutex_, next);
    }
    if (closing_) return false;
    if (listening_) return true;
  }
}

bool StreamSession::GiveUp(const absl::Status& why) {
  if (options_.give_up_after.count() == 0) return false;
  absl::Status gone;
  {
    MutexLock lock(mutex_);
    const Instant now = Clock::now();
    if (epoch_ == 0 || now - down_since_ < options_.give_up_after) return false;
    gone = absl::UnavailableError(
        absl::StrCat(Coordinator(), " is gone: ", why.message(), " for ",
                     FormatSince(down_since_, now)));
  }
  End(std::move(gone));
  return true;
}

void StreamSession::End(absl::Status why) {
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
  for (const PendingOperationPtr& pending : failed) pending->wake.NotifyOne();
  if (tell) options_.on_over(why);
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
      v1::HeartbeatRequest heartbeat;
      if (options_.progress) heartbeat = ToHeartbeat(options_.progress());
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
    if (CanWrite() && (heartbeat_due_ || operations_.HasWaiting()) &&
        operations_.FirstWaiting() == nullptr) {
      WriteWhatWaits(nullptr);
      continue;
    }
    changed_.WaitUntil(
        mutex_, std::min(now + kWatch, open_ ? next_look : Instant::max()));
  }
}

void StreamSession::CancelIfStuck(Instant now) {
  if (connection_ == nullptr) return;
  const bool attempt_stuck = !open_ && now - attempt_since_ > kAttemptMax;
  const bool write_stuck = writing_ && now - writing_since_ > kWriteMax;
  if (attempt_stuck || write_stuck) connection_->context.TryCancel();
}

}  // namespace muster::internal
