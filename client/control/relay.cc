#include "client/control/relay.h"

#include <sys/un.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/channel.h"
#include "client/control/endpoint.h"
#include "client/control/relay_route.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/server_callback.h"
#include "grpcpp/support/slice.h"
#include "muster/v1/session.grpc.pb.h"
#include "muster/v1/session.pb.h"
#include "proto/muster/v1/relay_flow.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

// The size at which a message to the coordinator is full.
constexpr size_t kMessageBytes = 64 << 10;
// At the end: the time for ranks to close their sessions, and for coordinators
// to take what is still to be told.
constexpr milliseconds kRanksTime(500);
constexpr milliseconds kCoordinatorTime(1000);
// The shortest interval of the ranks' pings.
constexpr int kPingIntervalMs = 1000;

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  buffer.Dump(&slices).ok();
  std::string bytes;
  bytes.reserve(buffer.Length());
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

std::string Header(const grpc::CallbackServerContext& call, const char* name) {
  const auto found = call.client_metadata().find(name);
  if (found == call.client_metadata().end()) return "";
  return {found->second.data(), found->second.size()};
}

}  // namespace

// One rank's session. What is not constant is guarded by the lock of the call
// that carries it.
class RelayedRank final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit RelayedRank(grpc::CallbackServerContext* grpc) : grpc_(grpc) {}

  // Ends a session that no call carries.
  void Refuse(const Status& status) { Finish(v1::ToGrpc(status)); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override {
    // This may be the last reference.
    const std::shared_ptr<RelayedRank> self = std::move(self_);
  }

 private:
  friend class RelayService;
  friend class RelayUpstream;

  grpc::CallbackServerContext* const grpc_;
  std::shared_ptr<RelayedRank> self_;  // until OnDone
  // Set before the first read.
  std::shared_ptr<RelayUpstream> upstream_;
  uint64_t number_ = 0;

  bool queued_ = false;  // in the call's ready_
  // To the coordinator.
  bool open_due_ = true;
  grpc::ByteBuffer incoming_;
  v1::RelaySender sender_;
  bool half_close_due_ = false;
  int64_t credit_ = 0;  // to be sent
  // To the rank.
  v1::RelayReceiver receiver_;
  grpc::ByteBuffer outgoing_;
  bool writing_ = false;
  // The coordinator's end of the session, which follows its last message.
  bool ended_ = false;
  Status end_;
  bool relay_lives_ = false;  // whether the rank should come back to the relay
  bool finished_ = false;
};

// One call of SessionService.Relay. Ends when it has no session any more; a
// later session gets a new call.
class RelayUpstream final
    : public grpc::ClientBidiReactor<v1::RelayRequest, v1::RelayResponse>,
      public std::enable_shared_from_this<RelayUpstream> {
 public:
  RelayUpstream(Relay& relay, const Endpoint& endpoint,
                const ConnectionSecurity& security)
      : relay_(relay),
        stub_(v1::SessionService::NewStub(NewChannel(endpoint, security))) {
    if (!security.authorization().empty()) {
      context_.AddMetadata("authorization", security.authorization());
    }
  }

  void Start() {
    self_ = shared_from_this();
    stub_->async()->Relay(&context_, this);
    StartRead(&response_);
    StartCall();
  }

  // Begins the rank's session. Returns false if the call takes no more.
  bool Open(const std::shared_ptr<RelayedRank>& rank) {
    MutexLock lock(mu_);
    if (closed_) return false;
    rank->upstream_ = shared_from_this();
    rank->number_ = ++last_number_;
    rank->receiver_.Read();
    ranks_.emplace(rank->number_, rank);
    Enqueue(*rank);
    Pump();
    rank->StartRead(&rank->incoming_);
    return true;
  }

  void Cancel() { context_.TryCancel(); }

  // The ranks' reactions.
  void RankSent(RelayedRank& rank, bool ok) {
    MutexLock lock(mu_);
    if (rank.finished_ || rank.ended_) return;
    if (ok) {
      rank.sender_.Begin(ToString(rank.incoming_));
      rank.incoming_.Clear();
    } else {
      rank.half_close_due_ = true;
    }
    Enqueue(rank);
    Pump();
  }

  void RankReceived(RelayedRank& rank, bool ok) {
    MutexLock lock(mu_);
    rank.writing_ = false;
    rank.outgoing_.Clear();
    if (!ok || rank.finished_) return;
    rank.receiver_.Read();
    WriteOrFinish(rank);
    Pump();
  }

  void RankGone(RelayedRank& rank) {
    MutexLock lock(mu_);
    if (ranks_.erase(rank.number_) > 0) gone_.push_back(rank.number_);
    FinishRank(rank, CancelledError("the rank has ended its session"));
    Pump();
    CloseIfIdle();
  }

  // gRPC's reactions.
  void OnReadInitialMetadataDone(bool ok) override {
    MutexLock lock(mu_);
    reached_ = ok;
  }

  void OnReadDone(bool ok) override {
    MutexLock lock(mu_);
    if (!ok) {
      closed_ = true;  // OnDone follows
      return;
    }
    for (v1::RelayFrame& frame : *response_.mutable_frames()) {
      const Status status = Accept(frame);
      if (status.ok()) continue;
      error_ = status;
      closed_ = true;
      context_.TryCancel();
      return;
    }
    v1::RelayResponse().Swap(&response_);
    Pump();
    CloseIfIdle();
    StartRead(&response_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    writing_ = false;
    v1::RelayRequest().Swap(&request_);
    if (!ok) return;  // so does the read
    Pump();
    CloseIfIdle();
  }

  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(mu_);
      closed_ = true;
      Status why = v1::FromGrpc(status);
      if (why.ok()) {
        why = UnavailableError("the coordinator has closed the relay's call");
      }
      if (!error_.ok()) why = error_;
      for (const auto& [number, rank] : ranks_) {
        // A coordinator that is restarted or drained is no fault of the relay.
        End(*rank, why, reached_ && error_.ok() && IsUnavailable(why));
      }
      ranks_.clear();
    }
    relay_.Forget(this);
    relay_.Remove(self_);
    // This may be the last reference.
    const std::shared_ptr<RelayUpstream> self = std::move(self_);
  }

 private:
  Status Accept(v1::RelayFrame& frame) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = ranks_.find(frame.session());
    if (found == ranks_.end()) return OkStatus();  // it is gone
    const std::shared_ptr<RelayedRank> rank = found->second;
    switch (frame.content_case()) {
      case v1::RelayFrame::kPart:
      case v1::RelayFrame::kLastPart: {
        const bool last = frame.has_last_part();
        Status status =
            rank->receiver_.Add(std::move(last ? *frame.mutable_last_part()
                                               : *frame.mutable_part()),
                                last);
        if (status.ok()) WriteOrFinish(*rank);
        return status;
      }
      case v1::RelayFrame::kCredit: {
        Status status = rank->sender_.AddCredit(frame.credit());
        Enqueue(*rank);
        return status;
      }
      case v1::RelayFrame::kEnd:
        ranks_.erase(found);
        End(*rank, v1::FromWire(frame.end()), /*relay_lives=*/true);
        return OkStatus();
      default:
        return InternalError("the coordinator sent the relay an unknown frame");
    }
  }

  // The rank's session ends with `status` when the rank has its last message.
  void End(RelayedRank& rank, const Status& status, bool relay_lives)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    rank.ended_ = true;
    rank.end_ = status;
    rank.relay_lives_ = relay_lives;
    WriteOrFinish(rank);
  }

  void WriteOrFinish(RelayedRank& rank) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    rank.credit_ += rank.receiver_.TakeCredit();
    if (rank.credit_ > 0) Enqueue(rank);
    if (rank.writing_ || rank.finished_) return;
    if (rank.receiver_.complete()) {
      const grpc::Slice slice(rank.receiver_.TakeMessage());
      grpc::ByteBuffer message(&slice, 1);
      rank.outgoing_.Swap(&message);
      rank.writing_ = true;
      rank.StartWrite(&rank.outgoing_);
    } else if (rank.ended_) {
      FinishRank(rank, rank.end_);
    }
  }

  void FinishRank(RelayedRank& rank, const Status& status)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (std::exchange(rank.finished_, true)) return;
    if (rank.relay_lives_) {
      rank.grpc_->AddTrailingMetadata(kRelayLivesHeader, "1");
    }
    rank.Finish(v1::ToGrpc(status));
  }

  void Enqueue(RelayedRank& rank) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool may_send = rank.open_due_ || rank.credit_ > 0 ||
                          rank.sender_.ready() || rank.half_close_due_;
    if (!may_send || rank.queued_) return;
    rank.queued_ = true;
    ready_.push_back(rank.number_);
  }

  // Sends what waits and may be sent: of each rank one part before a second.
  void Pump() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || closed_) return;
    for (const uint64_t number : gone_) {
      v1::RelayFrame* const frame = request_.add_frames();
      frame->set_session(number);
      frame->mutable_end();
    }
    gone_.clear();
    size_t bytes = 0;
    while (!ready_.empty() && bytes < kMessageBytes) {
      const auto found = ranks_.find(ready_.front());
      ready_.pop_front();
      if (found == ranks_.end()) continue;
      found->second->queued_ = false;
      bytes += TakeFrames(*found->second);
    }
    if (request_.frames_size() == 0) return;
    writing_ = true;
    StartWrite(&request_);
  }

  size_t TakeFrames(RelayedRank& rank) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto add = [&] {
      v1::RelayFrame* const frame = request_.add_frames();
      frame->set_session(rank.number_);
      return frame;
    };
    size_t bytes = sizeof(v1::RelayFrame);
    if (std::exchange(rank.open_due_, false)) add()->set_open(true);
    if (rank.credit_ > 0) {
      add()->set_credit(static_cast<uint32_t>(std::exchange(rank.credit_, 0)));
    }
    if (rank.sender_.ready()) {
      v1::RelayFrame* const frame = add();
      const bool sent = rank.sender_.MakePart(frame);
      bytes += frame->part().size() + frame->last_part().size();
      if (sent && !rank.finished_) rank.StartRead(&rank.incoming_);
    } else if (!rank.sender_.sending() &&
               std::exchange(rank.half_close_due_, false)) {
      add()->set_half_close(true);
    }
    if (rank.sender_.ready()) Enqueue(rank);
    return bytes;
  }

  // A call without sessions ends.
  void CloseIfIdle() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (closed_ || writing_ || !ranks_.empty() || !gone_.empty()) return;
    closed_ = true;
    StartWritesDone();
  }

  Relay& relay_;
  const std::unique_ptr<v1::SessionService::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<RelayUpstream> self_;  // from Start to OnDone
  v1::RelayRequest request_;             // used by whoever has set `writing_`
  v1::RelayResponse response_;           // used by the read

  Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<RelayedRank>> ranks_
      MUSTER_GUARDED_BY(mu_);
  uint64_t last_number_ MUSTER_GUARDED_BY(mu_) = 0;
  std::deque<uint64_t> ready_ MUSTER_GUARDED_BY(mu_);
  // Ranks whose end the coordinator has not been told.
  std::vector<uint64_t> gone_ MUSTER_GUARDED_BY(mu_);
  bool writing_ MUSTER_GUARDED_BY(mu_) = false;
  bool reached_ MUSTER_GUARDED_BY(mu_) = false;  // a coordinator
  bool closed_ MUSTER_GUARDED_BY(mu_) = false;   // nothing more is sent
  Status error_ MUSTER_GUARDED_BY(mu_);          // the coordinator's fault
};

void RelayedRank::OnReadDone(bool ok) { upstream_->RankSent(*this, ok); }
void RelayedRank::OnWriteDone(bool ok) { upstream_->RankReceived(*this, ok); }
void RelayedRank::OnCancel() {
  if (upstream_ != nullptr) upstream_->RankGone(*this);
}

class RelayService final
    : public v1::SessionService::WithRawCallbackMethod_Stream<
          v1::SessionService::WithCallbackMethod_Relay<
              v1::SessionService::Service>> {
 public:
  explicit RelayService(internal::Relay& relay) : relay_(relay) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Stream(
      grpc::CallbackServerContext* call) override {
    const auto rank = std::make_shared<RelayedRank>(call);
    rank->self_ = rank;
    const Status status = relay_.Attach(rank, Header(*call, kRelayTargetHeader),
                                        Header(*call, "authorization"));
    if (!status.ok()) rank->Refuse(status);
    return rank.get();
  }

 private:
  internal::Relay& relay_;
};

StatusOr<std::unique_ptr<Relay>> Relay::Start(const std::string& socket,
                                              ChannelSecurity security) {
  if (socket.size() >= sizeof(sockaddr_un::sun_path)) {
    return FailedPreconditionError(absl::StrCat(
        "the path ", base::Quote(socket), " of a socket has ", socket.size(),
        " bytes, may have ", sizeof(sockaddr_un::sun_path) - 1,
        ": set a shorter TMPDIR"));
  }
  std::unique_ptr<Relay> relay(new Relay(std::move(security)));
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingIntervalMs);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort(UnixTarget(socket),
                           grpc::InsecureServerCredentials());
  builder.RegisterService(relay->service_.get());
  relay->server_ = builder.BuildAndStart();
  if (relay->server_ == nullptr) {
    return FailedPreconditionError(
        absl::StrCat("cannot listen on a socket ", base::Quote(socket)));
  }
  return relay;
}

Relay::Relay(ChannelSecurity security)
    : security_(std::move(security)),
      service_(std::make_unique<RelayService>(*this)) {}

Relay::~Relay() {
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now() + kRanksTime);
  }
  const auto deadline = std::chrono::steady_clock::now() + kCoordinatorTime;
  MutexLock lock(mu_);
  while (!calls_.empty() && std::chrono::steady_clock::now() < deadline) {
    changed_.WaitUntil(mu_, deadline);
  }
  for (const auto& upstream : calls_) upstream->Cancel();
  while (!calls_.empty()) changed_.Wait(mu_);
}

Status Relay::Attach(const std::shared_ptr<RelayedRank>& rank,
                     absl::string_view coordinator,
                     absl::string_view authorization) {
  const StatusOr<Endpoint> endpoint = ParseEndpoint(coordinator);
  if (!endpoint.ok()) return endpoint.status();
  const StatusOr<ConnectionSecurity> security = security_.Load(*endpoint);
  if (!security.ok()) return security.status();
  if (security->authorization() != authorization) {
    return UnauthenticatedError(
        "the rank's token is not that of muster-run: the relay has no part in "
        "its session");
  }
  const std::string key =
      absl::StrCat(endpoint->ToString(), " ", security->authorization());
  while (true) {
    const std::shared_ptr<RelayUpstream> upstream =
        FindUpstream(key, *endpoint, *security);
    if (upstream->Open(rank)) return OkStatus();
    Forget(upstream.get());
  }
}

std::shared_ptr<RelayUpstream> Relay::FindUpstream(
    const std::string& key, const Endpoint& endpoint,
    const ConnectionSecurity& security) {
  MutexLock lock(mu_);
  std::shared_ptr<RelayUpstream>& upstream = upstreams_[key];
  if (upstream == nullptr) {
    upstream = std::make_shared<RelayUpstream>(*this, endpoint, security);
    calls_.insert(upstream);
    upstream->Start();
  }
  return upstream;
}

void Relay::Forget(const RelayUpstream* upstream) {
  MutexLock lock(mu_);
  for (auto each = upstreams_.begin(); each != upstreams_.end(); ++each) {
    if (each->second.get() != upstream) continue;
    upstreams_.erase(each);
    return;
  }
}

void Relay::Remove(const std::shared_ptr<RelayUpstream>& upstream) {
  MutexLock lock(mu_);
  calls_.erase(upstream);
  changed_.NotifyAll();
}

}  // namespace muster::internal
