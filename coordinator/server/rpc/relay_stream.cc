#include "coordinator/server/rpc/relay_stream.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/limits.h"
#include "coordinator/server/jobs/limit_log.h"
#include "coordinator/server/rpc/request.h"
#include "coordinator/server/rpc/server_session.h"
#include "coordinator/server/rpc/session_stream.h"
#include "glog/logging.h"
#include "grpcpp/support/slice.h"
#include "proto/muster/v1/relay_flow.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

// The size at which a message is full.
constexpr size_t kMessageBytes = 256 << 10;

// The time for a relay to read the trailers before its call is reset.
constexpr core::Duration kTrailersTimeout = std::chrono::seconds(2);

core::Instant Now() { return std::chrono::steady_clock::now(); }

grpc::ByteBuffer ToByteBuffer(std::string text) {
  auto* const owned = new std::string(std::move(text));
  const grpc::Slice slice(
      owned->data(), owned->size(),
      [](void* string) { delete static_cast<std::string*>(string); }, owned);
  return {&slice, 1};
}

}  // namespace

// RelayedStream is a session's part of a relay's call. All of it is guarded by
// the call's lock.
class RelayedStream final : public SessionStream {
 public:
  RelayedStream(RelayStream& relay, uint64_t number)
      : relay_(relay), number_(number) {}
  ~RelayedStream() override { CountBytes(0); }

  const grpc::ServerContextBase& call() const override { return *relay_.grpc_; }

  Read StartRead(grpc::ByteBuffer* bytes) override {
    MutexLock lock(relay_.mu_);
    receiver_.Read();
    CountBytes(receiver_.bytes());
    if (receiver_.complete()) {
      TakeMessage(bytes);
      SendCredit();
      return Read::kNow;
    }
    SendCredit();
    if (half_closed_) return Read::kEnded;
    into_ = bytes;
    return Read::kLater;
  }

  void StartWrite(const v1::StreamResponse* response) override {
    std::string message = response->SerializeAsString();
    MutexLock lock(relay_.mu_);
    sender_.Begin(std::move(message));
    relay_.Enqueue(*this);
    relay_.Pump();
  }

  void Finish(const Status& status) override {
    MutexLock lock(relay_.mu_);
    finished_ = true;
    into_ = nullptr;
    if (gone_ || relay_.finished_) {
      end_sent_ = gone_;
      return;  // the reaction that led here, or the call's OnDone, retires it
    }
    end_ = v1::ToWire(status);
    relay_.Enqueue(*this);
    relay_.Pump();
  }

  // The call itself is reset if its relay does not read.
  void Reset() override {}

 private:
  friend class RelayStream;

  void TakeMessage(grpc::ByteBuffer* bytes) {
    grpc::ByteBuffer message = ToByteBuffer(receiver_.TakeMessage());
    bytes->Swap(&message);
    CountBytes(receiver_.bytes());
  }

  void SendCredit() MUSTER_NO_THREAD_SAFETY_ANALYSIS {
    const int64_t credit = receiver_.TakeCredit();
    if (credit == 0) return;
    credit_ += credit;
    relay_.Enqueue(*this);
    relay_.Pump();
  }

  void CountBytes(size_t bytes) {
    relay_.table_.relayed_bytes_ += static_cast<int64_t>(bytes) - counted_;
    counted_ = static_cast<int64_t>(bytes);
  }

  RelayStream& relay_;
  const uint64_t number_;
  std::shared_ptr<ServerSession> session_;
  v1::RelaySender sender_;
  v1::RelayReceiver receiver_;
  int64_t counted_ = 0;               // the receiver's bytes in the table's sum
  int64_t credit_ = 0;                // to be sent
  grpc::ByteBuffer* into_ = nullptr;  // where the session reads
  bool half_closed_ = false;
  bool queued_ = false;    // in ready_
  bool gone_ = false;      // the relay has ended the session
  bool finished_ = false;  // by the session
  v1::WireStatus end_;     // the status to send
  bool end_sent_ = false;
  bool done_ = false;  // OnDone is or was called
  int reactions_ = 0;  // running now
};

RelayStream::RelayStream(SessionTable& table, const ServiceContext& context,
                         grpc::CallbackServerContext* grpc)
    : table_(table),
      context_(context),
      grpc_(grpc),
      started_(Now()),
      empty_since_(started_) {}

RelayStream::~RelayStream() = default;

void RelayStream::Start() {
  context_.open_calls->Begin();
  self_ = shared_from_this();
  Status status =
      context_.auth == nullptr ? OkStatus() : context_.auth->Know(*grpc_);
  if (status.ok()) status = table_.AddRelay(self_);
  MutexLock lock(mu_);
  // Tells the relay that it has reached a coordinator.
  StartSendInitialMetadata();
  if (!status.ok()) return FinishLocked(status);
  if (!finished_) StartRead(&bytes_);
}

void RelayStream::OnReadDone(bool ok) {
  if (!ok) {
    bool orderly = false;
    {
      MutexLock lock(mu_);
      half_closed_ = true;
      orderly = std::all_of(
          streams_.begin(), streams_.end(),
          [](const auto& stream) { return stream.second->finished_; });
      FinishIfEmpty();
    }
    if (!orderly) Break(UnavailableError("the relay has closed its call"));
    return;
  }
  {
    MutexLock lock(mu_);
    accepting_ = true;
  }
  const Status status = Accept();
  {
    MutexLock lock(mu_);
    accepting_ = false;
    Pump();
    if (status.ok()) {
      FinishIfEmpty();
      if (!finished_) StartRead(&bytes_);
      return;
    }
  }
  Break(status);
}

Status RelayStream::Accept() {
  v1::RelayRequest request;
  Status status = ParseRequest(&bytes_, &request);
  for (v1::RelayFrame& frame : *request.mutable_frames()) {
    if (!status.ok()) break;
    status = AcceptFrame(frame);
  }
  return status;
}

Status RelayStream::AcceptFrame(v1::RelayFrame& frame) {
  const uint64_t number = frame.session();
  if (frame.content_case() == v1::RelayFrame::CONTENT_NOT_SET) {
    return InvalidArgumentError(
        absl::StrCat("a frame of session ", number, " has no content"));
  }
  if (frame.has_open()) return AcceptOpen(number);
  {
    MutexLock lock(mu_);
    if (number > last_opened_ || number == 0) {
      return InvalidArgumentError(absl::StrCat("a frame of session ", number,
                                               ", which was never open"));
    }
  }
  RelayedStream* const stream = Enter(number);
  if (stream == nullptr) return OkStatus();  // it has ended
  Status status;
  switch (frame.content_case()) {
    case v1::RelayFrame::kPart:
      status = AcceptPart(*stream, std::move(*frame.mutable_part()), false);
      break;
    case v1::RelayFrame::kLastPart:
      status = AcceptPart(*stream, std::move(*frame.mutable_last_part()), true);
      break;
    case v1::RelayFrame::kCredit:
      status = AcceptCredit(*stream, frame.credit());
      break;
    case v1::RelayFrame::kHalfClose:
      status = AcceptHalfClose(*stream);
      break;
    default: {  // kEnd
      {
        MutexLock lock(mu_);
        stream->gone_ = true;
        // Its own end need not be sent any more.
        if (stream->finished_) stream->end_sent_ = true;
      }
      stream->session_->OnCancel();
    }
  }
  Leave(*stream);
  return status;
}

Status RelayStream::AcceptOpen(uint64_t number) {
  std::shared_ptr<ServerSession> session;
  RelayedStream* stream = nullptr;
  {
    MutexLock lock(mu_);
    if (number <= last_opened_) {
      return InvalidArgumentError(
          absl::StrCat("session ", number, " begins after session ",
                       last_opened_, ": numbers must grow"));
    }
    last_opened_ = number;
    if (broken_ || finished_) return OkStatus();
    auto owned = std::make_unique<RelayedStream>(*this, number);
    stream = owned.get();
    session = std::make_shared<ServerSession>(table_, context_, *stream);
    stream->session_ = session;
    ++stream->reactions_;
    streams_.emplace(number, std::move(owned));
  }
  session->Start();
  Leave(*stream);
  return OkStatus();
}

Status RelayStream::AcceptPart(RelayedStream& stream, std::string part,
                               bool last) {
  Status refusal;
  {
    MutexLock lock(mu_);
    if (stream.finished_) return OkStatus();
    if (stream.half_closed_) {
      return InvalidArgumentError(absl::StrCat(
          "a message of session ", stream.number_, " after its half-close"));
    }
    Status status = stream.receiver_.Add(std::move(part), last);
    if (!status.ok()) {
      return InvalidArgumentError(
          absl::StrCat("session ", stream.number_, ": ", status.message()));
    }
    stream.CountBytes(stream.receiver_.bytes());
    const auto bytes = static_cast<int64_t>(stream.receiver_.message_bytes());
    if (bytes > context_.message_bytes_max) {
      refusal = ResourceExhaustedError(
          absl::StrCat("Received message larger than max (at least ", bytes,
                       " vs. ", context_.message_bytes_max, ")"));
    } else if (bytes > v1::kRelayWindowBytes) {
      refusal = core::CheckLimit(
          "inbound_bytes", table_.options_.inbound_bytes_max,
          table_.relayed_bytes_,
          {"messages of relayed sessions that are not complete", ""});
    }
    if (refusal.ok()) {
      stream.SendCredit();
      if (stream.into_ == nullptr || !stream.receiver_.complete()) {
        return OkStatus();
      }
      stream.TakeMessage(std::exchange(stream.into_, nullptr));
    }
  }
  if (refusal.ok()) {
    stream.session_->OnReadDone(true);
  } else {
    LogIfLimited("", refusal);
    stream.session_->Close(refusal);
  }
  return OkStatus();
}

Status RelayStream::AcceptCredit(RelayedStream& stream, int64_t bytes) {
  MutexLock lock(mu_);
  const Status status = stream.sender_.AddCredit(bytes);
  if (!status.ok()) {
    return InvalidArgumentError(
        absl::StrCat("session ", stream.number_, ": ", status.message()));
  }
  Enqueue(stream);
  Pump();
  return OkStatus();
}

Status RelayStream::AcceptHalfClose(RelayedStream& stream) {
  {
    MutexLock lock(mu_);
    if (stream.receiver_.message_bytes() > 0) {
      return InvalidArgumentError(absl::StrCat(
          "a half-close of session ", stream.number_, " inside a message"));
    }
    stream.half_closed_ = true;
    if (std::exchange(stream.into_, nullptr) == nullptr) return OkStatus();
  }
  stream.session_->OnReadDone(false);
  return OkStatus();
}

RelayedStream* RelayStream::Enter(uint64_t number) {
  MutexLock lock(mu_);
  const auto found = streams_.find(number);
  if (found == streams_.end() || found->second->done_) return nullptr;
  ++found->second->reactions_;
  return found->second.get();
}

bool RelayStream::IsDone(const RelayedStream& stream) const {
  return !stream.done_ && stream.reactions_ == 0 && stream.finished_ &&
         (stream.end_sent_ || over_);
}

void RelayStream::Leave(RelayedStream& stream) {
  {
    MutexLock lock(mu_);
    --stream.reactions_;
    if (!IsDone(stream)) return;
    stream.done_ = true;
  }
  Retire(stream);
}

void RelayStream::Retire(RelayedStream& stream) {
  stream.session_->OnDone();
  // This may be the last reference to this call.
  const std::shared_ptr<RelayStream> self = shared_from_this();
  std::unique_ptr<RelayedStream> gone;
  MutexLock lock(mu_);
  const auto found = streams_.find(stream.number_);
  gone = std::move(found->second);
  streams_.erase(found);
  if (streams_.empty()) empty_since_ = Now();
  if (!accepting_) FinishIfEmpty();
}

void RelayStream::Break(const Status& status) {
  std::vector<uint64_t> numbers;
  {
    MutexLock lock(mu_);
    if (std::exchange(broken_, true)) return;
    for (const auto& [number, stream] : streams_) numbers.push_back(number);
    if (!numbers.empty()) {
      LOG(WARNING) << "relay_gone: peer=" << base::LogValue(grpc_->peer())
                   << " sessions=" << numbers.size()
                   << " cause=" << core::TextInNotice(status.message());
    }
    // First, so that the sessions send nothing more.
    FinishLocked(status);
  }
  for (const uint64_t number : numbers) {
    RelayedStream* const stream = Enter(number);
    if (stream == nullptr) continue;
    stream->session_->OnRelayGone();
    Leave(*stream);
  }
}

void RelayStream::Enqueue(RelayedStream& stream) {
  const bool may_send = stream.credit_ > 0 || stream.sender_.ready() ||
                        (stream.finished_ && !stream.end_sent_);
  if (!may_send || stream.queued_) return;
  stream.queued_ = true;
  ready_.push_back(stream.number_);
}

void RelayStream::Pump() {
  if (writing_ || accepting_ || finished_ || ready_.empty()) return;
  size_t bytes = 0;
  // Each session has one turn before one has a second.
  while (!ready_.empty() && bytes < kMessageBytes) {
    const auto found = streams_.find(ready_.front());
    ready_.pop_front();
    if (found == streams_.end()) continue;
    found->second->queued_ = false;
    bytes += TakeFrames(*found->second);
  }
  if (response_.frames_size() == 0) return;
  writing_ = true;
  write_started_at_ = Now();
  StartWrite(&response_);
}

size_t RelayStream::TakeFrames(RelayedStream& stream) {
  const auto add = [&] {
    v1::RelayFrame* const frame = response_.add_frames();
    frame->set_session(stream.number_);
    return frame;
  };
  size_t bytes = 0;
  if (stream.credit_ > 0 && !stream.finished_) {
    add()->set_credit(static_cast<uint32_t>(stream.credit_));
  }
  stream.credit_ = 0;
  if (stream.finished_) {
    // The client does not get the rest of its answers, as when a stream is cut
    // off. In a drain and after a half-close all are sent before.
    if (stream.gone_ || stream.end_sent_) return bytes;
    *add()->mutable_end() = std::move(stream.end_);
    ended_.push_back(stream.number_);
    return kMessageBytes / 64;
  }
  if (stream.sender_.ready()) {
    v1::RelayFrame* const frame = add();
    if (stream.sender_.MakePart(frame)) written_.push_back(stream.number_);
    bytes = frame->part().size() + frame->last_part().size();
  }
  Enqueue(stream);
  return bytes + sizeof(v1::RelayFrame);
}

void RelayStream::OnWriteDone(bool ok) {
  if (!ok) return Break(UnavailableError("the relay's call broke"));
  std::vector<uint64_t> written;
  std::vector<uint64_t> ended;
  {
    MutexLock lock(mu_);
    writing_ = false;
    written.swap(written_);
    ended.swap(ended_);
    // Before the next message, which must not end them again.
    for (const uint64_t number : ended) {
      const auto found = streams_.find(number);
      if (found != streams_.end()) found->second->end_sent_ = true;
    }
    // An idle relay keeps no memory of a large message.
    v1::RelayResponse().Swap(&response_);
    Pump();
    FinishIfEmpty();
  }
  for (const uint64_t number : written) {
    RelayedStream* const stream = Enter(number);
    if (stream == nullptr) continue;
    stream->session_->OnWriteDone(true);
    Leave(*stream);
  }
  for (const uint64_t number : ended) {
    RelayedStream* const stream = Enter(number);
    if (stream != nullptr) Leave(*stream);
  }
}

void RelayStream::OnCancel() {
  Break(UnavailableError("the relay's connection broke"));
}

void RelayStream::OnDone() {
  std::vector<uint64_t> numbers;
  {
    MutexLock lock(mu_);
    over_ = true;
    for (const auto& [number, stream] : streams_) numbers.push_back(number);
  }
  for (const uint64_t number : numbers) {
    RelayedStream* const stream = Enter(number);
    if (stream == nullptr) continue;
    // No effect if the call broke.
    stream->session_->OnRelayGone();
    Leave(*stream);
  }
  table_.RemoveRelay(self_);
  context_.open_calls->End();
  // This may be the last reference.
  const std::shared_ptr<RelayStream> self = std::move(self_);
}

void RelayStream::Drain(const Status& status) {
  MutexLock lock(mu_);
  draining_ = status;
  if (!accepting_) FinishIfEmpty();
}

void RelayStream::CutOffIfStalled(core::Instant now, core::Duration timeout) {
  Status status;
  {
    MutexLock lock(mu_);
    if (finished_) {
      if (now - finished_at_ > kTrailersTimeout) grpc_->TryCancel();
      return;
    }
    if (writing_ && now - write_started_at_ > timeout) {
      status = ResourceExhaustedError(
          absl::StrCat("the relay does not read its call: it took no message "
                       "for ",
                       core::FormatDuration(timeout)));
    } else if (streams_.empty() && now - empty_since_ > timeout) {
      status = DeadlineExceededError(absl::StrCat(
          "no session was open for ", core::FormatDuration(timeout)));
    }
  }
  if (!status.ok()) Break(status);
}

void RelayStream::FinishLocked(const Status& status) {
  if (std::exchange(finished_, true)) return;
  finished_at_ = Now();
  LogIfLimited("", status);
  context_.metrics->CountCalls(Method::kRelay, status.code(),
                               finished_at_ - started_);
  Finish(v1::ToGrpc(status));
}

void RelayStream::FinishIfEmpty() {
  if (!streams_.empty() || writing_) return;
  if (!draining_.ok()) return FinishLocked(draining_);
  if (half_closed_) FinishLocked(OkStatus());
}

}  // namespace muster::coordinator
