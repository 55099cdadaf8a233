#include "dataplane/cpu/transport/tcp_transport.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cpu/transport/address_exchange.h"
#include "dataplane/cpu/transport/control_connections.h"
#include "dataplane/cpu/transport/goodbye_message.h"
#include "dataplane/cpu/transport/interface.h"
#include "dataplane/cpu/transport/listener.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/tcp_connections.h"
#include "dataplane/cpu/transport/tcp_p2p_connections.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/cpu/transport/transport_errors.h"
#include "dataplane/culprit.h"
#include "glog/logging.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// The limit for the end of a peer to show on all connections after the first,
// and for this rank's last messages to arrive.
constexpr std::chrono::milliseconds kClosing = std::chrono::seconds(5);

class TcpTransport;

// A buffer of a collective, moved on the TcpConnections. After a failure parts
// may remain under way, but nothing moves them any more.
class TcpBuffer : public Buffer {
 public:
  TcpBuffer(TcpTransport& transport, void* data)
      : transport_(transport), data_(static_cast<std::byte*>(data)) {}

  Status Receive(int peer, size_t offset, size_t bytes) override;
  Status Send(int peer, size_t offset, size_t bytes) override;
  Status WaitReceive(int peer) override;
  Status WaitSend(int peer) override;

 private:
  // A send or receive that has no wait yet.
  struct Posted {
    int peer;
    uint64_t number;
  };
  // Removes and returns the oldest with `peer`.
  static uint64_t Take(std::deque<Posted>& posted, int peer);

  TcpTransport& transport_;
  std::byte* const data_;
  std::deque<Posted> sends_;
  std::deque<Posted> receives_;
};

class TcpTransport : public Transport {
 public:
  explicit TcpTransport(const BackendOptions& options)
      : Transport(options.rank, options.world_size),
        listener_(options.rank, options.world_size),
        connections_(options.rank, options.world_size),
        p2p_connections_(
            options.rank, options.world_size, listener_,
            [this](int peer, const Status& failure, Instant since) {
              return FindGone(peer, failure, since);
            }),
        control_connections_(options.world_size),
        how_gone_(options.world_size) {}
  ~TcpTransport() override { listener_.Stop(); }

  Status Open(absl::string_view backend, const BackendOptions& options,
              const TransportChoice& choice);

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override {
    return std::make_unique<TcpBuffer>(*this, data);
  }
  P2pConnections* p2p_connections() override { return &p2p_connections_; }
  Status Write(int peer, const void* head, size_t head_bytes, const void* body,
               size_t body_bytes) override;
  Status Read(int peer, void* data, size_t bytes) override;
  void Abort(const Status& cause) override;
  Status abort_cause() const override;
  Status CheckPeers() override;
  Status Gone(int peer) override;
  void Close(const Status& goodbye) override;

 private:
  friend class TcpBuffer;

  // Calls `function`, which waits for `peer` on its connection, and converts
  // its result.
  template <typename Function>
  Status OnConnection(int peer, Function&& function);
  // Checks whether `peer` has gone, and records how.
  void Look(int peer) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(peers_mutex_);
  void NoteGone(int peer, const ControlConnections::End& end)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(peers_mutex_);
  // See TcpP2pConnections.
  std::optional<Status> FindGone(int peer, const Status& failure,
                                 Instant since);
  // The error of `peer`, one of whose connections has ended, with `failure` if
  // that is known. `end`: that of its control connection, if it has ended.
  Status MakeGoneError(int peer,
                       const std::optional<ControlConnections::End>& end,
                       const Status& failure);

  // The listener's thread, which uses p2p_connections_, ends before the
  // destruction of these.
  Listener listener_;
  TcpConnections connections_;
  TcpP2pConnections p2p_connections_;
  ControlConnections control_connections_;
  // All connections are made.
  bool connected_ = false;

  mutable Mutex mutex_;
  Status abort_cause_ MUSTER_GUARDED_BY(mutex_);

  Mutex peers_mutex_;
  // By rank: the error with which the peer went, or OK.
  std::vector<Status> how_gone_ MUSTER_GUARDED_BY(peers_mutex_);
  // The error of the first peer that did not leave in peace.
  Status first_broken_ MUSTER_GUARDED_BY(peers_mutex_);
};

template <typename Function>
Status TcpTransport::OnConnection(int peer, Function&& function) {
  waiting_for_.store(peer);
  // Check after waiting_for_ is set and before the wait: a later abort wakes
  // the wait.
  Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  switch (function()) {
    case TcpConnections::IoResult::kDone:
      waiting_for_.store(-1);
      return OkStatus();
    case TcpConnections::IoResult::kWoken:
      return abort_cause();
    case TcpConnections::IoResult::kBroken:
      break;
  }
  if (!connections_.bad_memory().ok()) return connections_.bad_memory();
  return Gone(connections_.broken_peer());
}

uint64_t TcpBuffer::Take(std::deque<Posted>& posted, int peer) {
  const auto oldest =
      std::find_if(posted.begin(), posted.end(),
                   [peer](const Posted& one) { return one.peer == peer; });
  CHECK(oldest != posted.end()) << "nothing under way with rank " << peer;
  const uint64_t number = oldest->number;
  posted.erase(oldest);
  return number;
}

Status TcpBuffer::Receive(int peer, size_t offset, size_t bytes) {
  Status aborted = transport_.abort_cause();
  if (!aborted.ok()) return aborted;
  receives_.push_back(
      {peer, transport_.connections_.PostReceive(peer, data_ + offset, bytes)});
  return OkStatus();
}

Status TcpBuffer::Send(int peer, size_t offset, size_t bytes) {
  Status aborted = transport_.abort_cause();
  if (!aborted.ok()) return aborted;
  sends_.push_back(
      {peer, transport_.connections_.PostSend(peer, data_ + offset, bytes)});
  return OkStatus();
}

Status TcpBuffer::WaitReceive(int peer) {
  return transport_.OnConnection(peer, [&] {
    return transport_.connections_.AwaitReceive(peer, Take(receives_, peer));
  });
}

Status TcpBuffer::WaitSend(int peer) {
  return transport_.OnConnection(peer, [&] {
    return transport_.connections_.AwaitSend(peer, Take(sends_, peer));
  });
}

Status TcpTransport::Open(absl::string_view backend,
                          const BackendOptions& options,
                          const TransportChoice& choice) {
  StatusOr<AddressBytes> host = ChooseAddress(options);
  if (!host.ok()) return host.status();
  if (world_size() == 1) return OkStatus();
  const std::stop_callback interrupted(options.interruption.token(), [&] {
    Abort(ToAbortCause(options.interruption.status()));
  });
  StatusOr<RankAddress> own = listener_.Listen(*std::move(host));
  if (!own.ok()) return own.status();
  own->backend = std::string(backend);
  own->transport = choice.name;
  own->tuning = choice.tuning;
  own->interfaces =
      std::max(1, static_cast<int>(NamedInterfaces(options).size()));
  StatusOr<std::vector<RankAddress>> addresses =
      ExchangeAddresses(*own, options);
  if (!addresses.ok()) return addresses.status();
  StatusOr<Listener::Sockets> sockets =
      listener_.Connect(*addresses, options.deadline);
  if (!sockets.ok()) {
    Status why = sockets.status();
    control_connections_.Take(listener_.TakeControlConnections()).IgnoreError();
    if (IsUnavailable(why)) {
      // A goodbye may tell why this peer, or another one, has gone.
      const Status first = CheckPeers();
      if (!first.ok()) why = first;
    }
    if (const Status aborted = abort_cause(); !aborted.ok()) {
      why = aborted;
    }
    // Tells the connected peers the cause, so that they do not blame this rank.
    control_connections_.Close(EncodeGoodbye(why));
    return why;
  }
  Status taken = connections_.Take(sockets->data, sockets->memories);
  taken.Update(control_connections_.Take(sockets->control));
  if (!taken.ok()) return taken;
  memories_ = sockets->memories;
  listener_.Serve([this](int peer, int socket, const auto& tell) {
    p2p_connections_.Take(peer, socket, tell);
  });
  connected_ = true;
  return OkStatus();
}

void TcpTransport::Abort(const Status& cause) {
  MutexLock lock(mutex_);
  if (!abort_cause_.ok()) return;
  abort_cause_ = cause;
  connections_.Wake();
  control_connections_.Wake();
  listener_.Wake();
  p2p_connections_.Abort();
}

Status TcpTransport::Write(int peer, const void* head, size_t head_bytes,
                           const void* body, size_t body_bytes) {
  return OnConnection(peer, [&] {
    return connections_.Write(peer, head, head_bytes, body, body_bytes);
  });
}

Status TcpTransport::Read(int peer, void* data, size_t bytes) {
  return OnConnection(peer,
                      [&] { return connections_.Read(peer, data, bytes); });
}

Status TcpTransport::abort_cause() const {
  MutexLock lock(mutex_);
  return abort_cause_;
}

Status TcpTransport::CheckPeers() {
  MutexLock lock(peers_mutex_);
  for (int peer = 0; peer < world_size(); ++peer) Look(peer);
  return first_broken_;
}

void TcpTransport::Look(int peer) {
  if (!how_gone_[peer].ok()) return;
  const std::optional<ControlConnections::End> end =
      control_connections_.Look(peer);
  if (end.has_value()) NoteGone(peer, *end);
}

Status TcpTransport::Gone(int peer) {
  // A deadline that passes meanwhile then names this peer.
  waiting_for_.store(peer);
  Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  const std::optional<ControlConnections::End> end =
      control_connections_.AwaitEnd(peer, Clock::now() + kClosing);
  return MakeGoneError(peer, end, OkStatus());
}

std::optional<Status> TcpTransport::FindGone(int peer, const Status& failure,
                                             Instant since) {
  const std::optional<ControlConnections::End> end =
      control_connections_.Look(peer);
  if (!end.has_value() && Clock::now() - since < kClosing) return std::nullopt;
  return MakeGoneError(peer, end, failure);
}

Status TcpTransport::MakeGoneError(
    int peer, const std::optional<ControlConnections::End>& end,
    const Status& failure) {
  Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  // A peer that went earlier may be the reason why this one went.
  Status first = CheckPeers();
  if (!first.ok()) return first;
  if (!end.has_value()) {
    Status status = UnavailableError(absl::StrCat(
        "rank ", peer, " closed a connection: ",
        failure.ok() ? "the connection has ended" : failure.message()));
    SetCulpritRank(status, peer);
    return status;
  }
  MutexLock lock(peers_mutex_);
  return how_gone_[peer];
}

void TcpTransport::NoteGone(int peer, const ControlConnections::End& end) {
  how_gone_[peer] = InterpretGoodbye(peer, end.goodbye, end.text);
  if (first_broken_.ok() && !LeftInPeace(end.goodbye)) {
    first_broken_ = how_gone_[peer];
  }
}

void TcpTransport::Close(const Status& goodbye) {
  p2p_connections_.Abort();
  listener_.Stop();
  // Without connections there is nobody to send a goodbye to.
  if (!connected_) return;
  // Send the goodbyes first: a peer that sees another connection end reads
  // them.
  control_connections_.Close(EncodeGoodbye(goodbye));
  // Sends that are complete must arrive if this rank leaves in peace.
  p2p_connections_.Close(IsCancelled(goodbye) ? Clock::now() + kClosing
                                              : Instant::min());
  connections_.Close();
}

}  // namespace

StatusOr<std::unique_ptr<Transport>> ConnectTcp(absl::string_view backend,
                                                const BackendOptions& options,
                                                const TransportChoice& choice) {
  auto transport = std::make_unique<TcpTransport>(options);
  Status status = transport->Open(backend, options, choice);
  if (!status.ok()) {
    return status;
  }
  return transport;
}

}  // namespace muster::dataplane::cpu
