#include "dataplane/cpu/transport/transport.h"

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status.h"
#include "dataplane/cpu/transport/address_exchange.h"
#include "dataplane/cpu/transport/control_connections.h"
#include "dataplane/cpu/transport/gloo_pairs.h"
#include "dataplane/cpu/transport/goodbye_message.h"
#include "dataplane/cpu/transport/interface.h"
#include "dataplane/cpu/transport/listener.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/tcp_connections.h"
#include "dataplane/cpu/transport/transport_errors.h"
#include "dataplane/culprit.h"
#include "glog/logging.h"

namespace muster::dataplane::cpu {
namespace {

// Gloo closes every connection of a context when one of its waits times out. So
// its timeouts are never reached; the owner of the deadline calls
// Transport::Abort.
constexpr std::chrono::milliseconds kNever = std::chrono::hours(24 * 365 * 10);

// The limit for the end of a peer to show on all connections after the first.
constexpr std::chrono::milliseconds kClosing = std::chrono::seconds(5);

// A connection that the peer has closed answers a write with SIGPIPE, whose
// default kills the process, and Gloo writes without MSG_NOSIGNAL.
void IgnoreBrokenPipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 &&
      (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

class TcpTransport;

// A buffer of a collective, moved on the TcpConnections. After a failure parts
// may remain under way, but nothing moves them any more.
class TcpBuffer : public Buffer {
 public:
  TcpBuffer(TcpTransport& transport, void* data)
      : transport_(transport), data_(static_cast<std::byte*>(data)) {}

  Status Receive(int peer, uint64_t slot, size_t offset, size_t bytes) override;
  Status Send(int peer, uint64_t slot, size_t offset, size_t bytes) override;
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

// A buffer moved by Gloo: for sends and receives, by several threads, and for
// large tensors of collectives.
class GlooBuffer : public Buffer {
 public:
  GlooBuffer(TcpTransport& transport, void* data, size_t bytes, bool quiet);
  ~GlooBuffer() override;

  Status Receive(int peer, uint64_t slot, size_t offset, size_t bytes) override;
  Status Send(int peer, uint64_t slot, size_t offset, size_t bytes) override;
  Status WaitReceive(int peer) override;
  Status WaitSend(int peer) override;

  // Call it after the first Post.
  void WakeWaiters() {
    buffer_->abortWaitRecv();
    buffer_->abortWaitSend();
  }

 private:
  template <typename Function>
  Status Post(int peer, Function&& function);
  template <typename Function>
  Status Await(int peer, Function&& function);

  TcpTransport& transport_;
  void* const data_;
  const size_t bytes_;
  const bool quiet_;  // See CreateQuietBuffer.
  // Null until a pair is open.
  std::unique_ptr<gloo_transport::UnboundBuffer> buffer_;
};

class TcpTransport : public Transport {
 public:
  explicit TcpTransport(const BackendOptions& options)
      : Transport(options.rank, options.world_size),
        listener_(options.rank, options.world_size),
        pairs_(options.rank, options.world_size, listener_),
        connections_(options.rank, options.world_size),
        control_connections_(options.world_size),
        how_gone_(options.world_size) {}
  ~TcpTransport() override { listener_.Stop(); }

  Status Open(absl::string_view backend, const BackendOptions& options);

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override {
    return std::make_unique<TcpBuffer>(*this, data);
  }
  std::unique_ptr<Buffer> CreateGlooBuffer(void* data, size_t bytes) override {
    return std::make_unique<GlooBuffer>(*this, data, bytes, /*quiet=*/false);
  }
  std::unique_ptr<Buffer> CreateQuietBuffer(void* data, size_t bytes) override {
    return std::make_unique<GlooBuffer>(*this, data, bytes, /*quiet=*/true);
  }
  Status OpenQuiet(int peer) override;
  Status Write(int peer, const void* head, size_t head_bytes, const void* body,
               size_t body_bytes) override;
  Status Read(int peer, void* data, size_t bytes) override;
  void Abort(const Status& cause) override;
  Status abort_cause() const override;
  Status CheckPeers() override;
  Status Gone(int peer) override {
    return Gone(peer, /*quiet=*/false, OkStatus());
  }
  void Close(const Status& goodbye) override;

 private:
  friend class GlooBuffer;
  friend class TcpBuffer;

  // Makes the pair with `peer` unless it exists.
  Status OpenPair(int peer, bool quiet);
  // Calls `function`, which waits for `peer` on its connection, and converts
  // its result.
  template <typename Function>
  Status OnConnection(int peer, Function&& function);
  // Checks whether `peer` has gone, and records how.
  void Look(int peer) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(peers_mutex_);
  void NoteGone(int peer, const ControlConnections::End& end)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(peers_mutex_);
  // The error of `peer`, one of whose connections has just failed: its pair
  // with `failure`, or its data connection.
  Status Gone(int peer, bool quiet, const Status& failure);

  // Destroyed in reverse order. The listener's thread, which uses the pairs,
  // ends before that.
  Listener listener_;
  Pairs pairs_;
  TcpConnections connections_;
  ControlConnections control_connections_;
  // All connections are made.
  bool connected_ = false;

  mutable Mutex mutex_;
  Status abort_cause_ MUSTER_GUARDED_BY(mutex_);
  // Buffers whose waiters an abort must wake.
  std::unordered_set<GlooBuffer*> buffers_ MUSTER_GUARDED_BY(mutex_);

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
  return Gone(connections_.broken_peer(), /*quiet=*/false, OkStatus());
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

Status TcpBuffer::Receive(int peer, uint64_t, size_t offset, size_t bytes) {
  Status aborted = transport_.abort_cause();
  if (!aborted.ok()) return aborted;
  receives_.push_back(
      {peer, transport_.connections_.PostReceive(peer, data_ + offset, bytes)});
  return OkStatus();
}

Status TcpBuffer::Send(int peer, uint64_t, size_t offset, size_t bytes) {
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

GlooBuffer::GlooBuffer(TcpTransport& transport, void* data, size_t bytes,
                       bool quiet)
    : transport_(transport), data_(data), bytes_(bytes), quiet_(quiet) {}

GlooBuffer::~GlooBuffer() {
  MutexLock lock(transport_.mutex_);
  transport_.buffers_.erase(this);
}

template <typename Function>
Status GlooBuffer::Post(int peer, Function&& function) {
  Status aborted = transport_.abort_cause();
  if (!aborted.ok()) return aborted;
  Status opened = transport_.OpenPair(peer, quiet_);
  if (!opened.ok()) return opened;
  if (buffer_ == nullptr) {
    buffer_ = transport_.pairs_.context().createUnboundBuffer(data_, bytes_);
    MutexLock lock(transport_.mutex_);
    transport_.buffers_.insert(this);
  }
  transport_.pairs_.Posting(true);
  Status posted = Guard(function);
  transport_.pairs_.Posting(false);
  return posted.ok() ? posted : transport_.Gone(peer, quiet_, posted);
}

template <typename Function>
Status GlooBuffer::Await(int peer, Function&& function) {
  if (!quiet_) transport_.waiting_for_.store(peer);
  // See OnConnection.
  Status aborted = transport_.abort_cause();
  if (!aborted.ok()) return aborted;
  bool done = false;
  Status waited = Guard([&] { done = function(); });
  // If the connection ends right after the awaited message, Gloo may report the
  // end first, but only to a thread that was already waiting.
  if (!waited.ok()) waited = Guard([&] { done = function(); });
  if (!waited.ok()) return transport_.Gone(peer, quiet_, waited);
  if (!done) return transport_.abort_cause();
  if (!quiet_) transport_.waiting_for_.store(-1);
  return OkStatus();
}

Status GlooBuffer::Receive(int peer, uint64_t slot, size_t offset,
                           size_t bytes) {
  return Post(peer, [&] { buffer_->recv(peer, slot, offset, bytes); });
}

Status GlooBuffer::Send(int peer, uint64_t slot, size_t offset, size_t bytes) {
  return Post(peer, [&] { buffer_->send(peer, slot, offset, bytes); });
}

Status GlooBuffer::WaitReceive(int peer) {
  return Await(peer, [&] { return buffer_->waitRecv(nullptr, kNever); });
}

Status GlooBuffer::WaitSend(int peer) {
  return Await(peer, [&] { return buffer_->waitSend(nullptr, kNever); });
}

Status TcpTransport::Open(absl::string_view backend,
                          const BackendOptions& options) {
  IgnoreBrokenPipes();
  StatusOr<AddressBytes> host = pairs_.Start(options);
  if (!host.ok()) return host.status();
  if (world_size() == 1) return OkStatus();
  const std::stop_callback interrupted(options.interruption.token(), [&] {
    Status why = options.interruption.status();
    // kCancelled would tell the peers that this rank leaves in peace.
    if (IsCancelled(why)) {
      const std::vector<int> culprits = CulpritRanks(why);
      why = UnavailableError(why.message());
      SetCulpritRanks(why, culprits);
    }
    Abort(why);
  });
  StatusOr<RankAddress> own = listener_.Listen(*std::move(host));
  if (!own.ok()) return own.status();
  own->backend = std::string(backend);
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
    pairs_.Take(peer, socket, tell);
  });
  connected_ = true;
  return OkStatus();
}

Status TcpTransport::OpenPair(int peer, bool quiet) {
  if (pairs_.IsOpen(peer)) return OkStatus();
  if (!quiet) waiting_for_.store(peer);
  // See OnConnection.
  Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  Status opened = pairs_.Open(peer);
  if (IsResourceExhausted(opened)) return opened;
  if (!opened.ok()) return Gone(peer, quiet, opened);
  if (!quiet) waiting_for_.store(-1);
  return opened;
}

Status TcpTransport::OpenQuiet(int peer) {
  return OpenPair(peer, /*quiet=*/true);
}

void TcpTransport::Abort(const Status& cause) {
  MutexLock lock(mutex_);
  if (!abort_cause_.ok()) return;
  abort_cause_ = cause;
  for (GlooBuffer* buffer : buffers_) buffer->WakeWaiters();
  connections_.Wake();
  control_connections_.Wake();
  listener_.Wake();
  pairs_.Abort();
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

Status TcpTransport::Gone(int peer, bool quiet, const Status& failure) {
  // Gloo has no code for EFAULT, only the system's text, and no address.
  if (absl::StrContains(failure.message(), std::strerror(EFAULT))) {
    return BadMemory(rank(),
                     absl::StrCat("a tensor cannot be read or written: ",
                                  WithoutSourcePosition(failure.message())));
  }
  // A deadline that passes meanwhile then names this peer.
  if (!quiet) waiting_for_.store(peer);
  Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  const std::optional<ControlConnections::End> end =
      control_connections_.AwaitEnd(peer, Clock::now() + kClosing);
  aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  // A peer that went earlier may be the reason why this one went.
  Status first = CheckPeers();
  if (!first.ok()) return first;
  if (!end.has_value()) {
    Status status = UnavailableError(absl::StrCat(
        "rank ", peer,
        " closed a connection: ", WithoutSourcePosition(failure.message())));
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
  pairs_.Abort();
  listener_.Stop();
  // Without connections there is nobody to send a goodbye to.
  if (!connected_) return;
  // Send the goodbyes first: a peer that sees another connection end reads
  // them.
  control_connections_.Close(EncodeGoodbye(goodbye));
  pairs_.Close();
  connections_.Close();
}

}  // namespace

StatusOr<std::unique_ptr<Transport>> Transport::Connect(
    absl::string_view backend, const BackendOptions& options) {
  auto transport = std::make_unique<TcpTransport>(options);
  Status status = transport->Open(backend, options);
  if (!status.ok()) {
    return status;
  }
  return transport;
}

}  // namespace muster::dataplane::cpu
