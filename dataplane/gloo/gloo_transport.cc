#include "dataplane/gloo/gloo_transport.h"

#include <gloo/common/error.h>
#include <gloo/common/logging.h>
#include <gloo/config.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#if GLOO_HAVE_TRANSPORT_IBVERBS && __has_include(<infiniband/verbs.h>)
#define MUSTER_HAVE_GLOO_IBVERBS 1
#include <gloo/transport/ibverbs/device.h>
#endif
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dataplane/cpu/transport/interface.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/tcp_transport.h"
#include "dataplane/cpu/transport/transport_errors.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::cpu {
namespace {

using ::gloo::transport::Device;
using ::gloo::transport::UnboundBuffer;

constexpr char kDeviceVariable[] = "GLOO_DEVICE_TRANSPORT";

// A timeout that never comes: the engine's watchdog aborts.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 3650);

// The limit for this rank's last notes to be taken.
constexpr std::chrono::milliseconds kClosing = std::chrono::seconds(5);

// The largest message of a note. The library sends a message once its receiver
// has posted a receive, but a rank may write notes to a peer before that reads
// any, and leave: each rank has kPosted receives for each peer, and keeps up to
// kUnsent messages for it.
constexpr size_t kMessageBytes = 33 << 10;
constexpr uint64_t kPosted = 2;
constexpr uint64_t kUnsent = 8;

// Keeps SIGPIPE from this thread, and from threads that it starts: the library
// writes to connections that their peer may have closed.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~WithoutSigpipe() {
    if (sigismember(&before_, SIGPIPE) != 0) return;
    const timespec now = {};
    sigtimedwait(&signal_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t signal_;
  sigset_t before_;
};

// Calls `call`. False if the library throws.
template <typename Call>
bool Try(Call&& call, std::string* why = nullptr) {
  const WithoutSigpipe without_sigpipe;
  try {
    call();
    return true;
  } catch (const std::exception& error) {
    if (why != nullptr) *why = error.what();
  }
  return false;
}

// The upper-case name of the device.
std::string FindDeviceName() {
  const char* const variable = std::getenv(kDeviceVariable);
  const std::string name =
      absl::AsciiStrToUpper(variable == nullptr ? "" : variable);
  return name.empty() ? "TCP" : name;
}

StatusOr<std::shared_ptr<Device>> MakeDevice(const std::string& name,
                                             const BackendOptions& options) {
  std::shared_ptr<Device> device;
  std::string why;
  if (name == "TCP") {
    const StatusOr<AddressBytes> address = ChooseAddress(options);
    if (!address.ok()) return address.status();
    char host[NI_MAXHOST] = {};
    getnameinfo(reinterpret_cast<const sockaddr*>(address->data()),
                AddressSize(*address), host, sizeof(host), nullptr, 0,
                NI_NUMERICHOST);
    Try([&] { device = ::gloo::transport::tcp::CreateDevice(host); }, &why);
  } else if (name == "IBVERBS") {
#ifdef MUSTER_HAVE_GLOO_IBVERBS
    // The first device.
    Try(
        [&] {
          device = ::gloo::transport::ibverbs::CreateDevice(
              {.name = "", .port = 1, .index = 0});
        },
        &why);
#else
    return UnimplementedError(absl::StrCat(
        kDeviceVariable, "=", name, ": the Gloo library was built without it"));
#endif
  } else {
    return InvalidArgumentError(
        absl::StrCat("environment variable ", kDeviceVariable,
                     " must be TCP or IBVERBS but was ", base::Quote(name)));
  }
  if (device != nullptr) return device;
  return UnavailableError(absl::StrCat(kDeviceVariable, "=", name,
                                       ": no device: ", base::Printable(why)));
}

class GlooTransport : public Transport {
 public:
  explicit GlooTransport(std::unique_ptr<Transport> tcp)
      : Transport(tcp->rank(), tcp->world_size()),
        tcp_(std::move(tcp)),
        peers_(world_size()) {
    for (int peer = 0; peer < world_size(); ++peer) {
      if (const PeerMemory* const memory = tcp_->FindMemory(peer)) {
        memories_[peer] = *memory;
      }
    }
  }

  // Connects the pairs. Closes the transport if that fails.
  Status Open(std::shared_ptr<Device> device, const std::string& device_name,
              const BackendOptions& options);

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override;
  P2pConnections* p2p_connections() override { return tcp_->p2p_connections(); }
  Status Write(int peer, const void* head, size_t head_bytes, const void* body,
               size_t body_bytes) override;
  Status Read(int peer, void* data, size_t bytes) override;
  void Abort(const Status& cause) override;
  Status abort_cause() const override { return tcp_->abort_cause(); }
  Status CheckPeers() override { return tcp_->CheckPeers(); }
  Status Gone(int peer) override {
    waiting_for_.store(peer);
    return tcp_->Gone(peer);
  }
  void Close(const Status& goodbye) override;

 private:
  friend class GlooBuffer;

  // Messages of notes to and from a peer, each with its size in front.
  struct Peer {
    // A ring, allocated at the first message.
    std::unique_ptr<std::byte[]> outgoing = {};
    std::unique_ptr<UnboundBuffer> sends = {};
    uint64_t written = 0;
    uint64_t sent = 0;

    // A ring.
    std::unique_ptr<std::byte[]> incoming = {};
    std::unique_ptr<UnboundBuffer> receives = {};
    uint64_t posted = 0;
    uint64_t read = 0;
    // The unread rest of the message that is being read.
    std::span<const std::byte> rest = {};

    // The numbers of the last buffers' messages.
    uint64_t buffers_sent = 0;
    uint64_t buffers_received = 0;
  };

  // Gloo's slots. Each message has its own.
  static uint64_t ToNoteSlot(uint64_t number) { return 2 * number; }
  static uint64_t ToBufferSlot(uint64_t number) { return 2 * number + 1; }

  Status ConnectPairs(const BackendOptions& options);
  void ClosePairs();
  // Posts a send or receive with `peer` by `post`.
  template <typename Post>
  Status Start(int peer, Post&& post);
  // Waits for the oldest send or receive of `buffer`, which is with `peer`.
  Status Wait(int peer, UnboundBuffer& buffer, bool sends);
  // The error of `buffer`, used with `peer`, after the library has thrown.
  Status Broken(int peer, const UnboundBuffer* buffer);
  // Posts the receives that are missing. At the end of a peer it cannot.
  void PostReceives(int peer);
  Status SendMessage(int peer, std::span<const std::byte> head,
                     std::span<const std::byte> body);

  const std::unique_ptr<Transport> tcp_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<::gloo::transport::Context> context_;
  // By rank.
  std::vector<Peer> peers_;

  Mutex mutex_;
  // The buffer for which a thread waits, or null.
  UnboundBuffer* waited_ MUSTER_GUARDED_BY(mutex_) = nullptr;
};

// A buffer of a collective. One of the library's buffers per peer, because
// those do not say which peer's transfer is complete.
class GlooBuffer : public Buffer {
 public:
  GlooBuffer(GlooTransport& transport, void* data, size_t bytes)
      : transport_(transport), data_(data), bytes_(bytes) {}

  Status Receive(int peer, size_t offset, size_t bytes) override {
    return transport_.Start(peer, [&] {
      WithPeer(peer).recv(peer,
                          GlooTransport::ToBufferSlot(
                              ++transport_.peers_[peer].buffers_received),
                          offset, bytes);
    });
  }
  Status Send(int peer, size_t offset, size_t bytes) override {
    return transport_.Start(peer, [&] {
      WithPeer(peer).send(
          peer,
          GlooTransport::ToBufferSlot(++transport_.peers_[peer].buffers_sent),
          offset, bytes);
    });
  }
  Status WaitReceive(int peer) override {
    return transport_.Wait(peer, WithPeer(peer), /*sends=*/false);
  }
  Status WaitSend(int peer) override {
    return transport_.Wait(peer, WithPeer(peer), /*sends=*/true);
  }

 private:
  UnboundBuffer& WithPeer(int peer) {
    std::unique_ptr<UnboundBuffer>& buffer = buffers_[peer];
    if (buffer == nullptr) {
      buffer = transport_.context_->createUnboundBuffer(data_, bytes_);
    }
    return *buffer;
  }

  GlooTransport& transport_;
  void* const data_;
  const size_t bytes_;
  std::map<int, std::unique_ptr<UnboundBuffer>> buffers_;
};

Status GlooTransport::Open(std::shared_ptr<Device> device,
                           const std::string& device_name,
                           const BackendOptions& options) {
  if (world_size() == 1) return OkStatus();
  device_ = std::move(device);
  std::string why;
  const bool can_do = Try(
      [&] {
        context_ = device_->createContext(rank(), world_size());
        context_->createUnboundBuffer(nullptr, 0);
      },
      &why);
  Status status =
      can_do
          ? ConnectPairs(options)
          : UnimplementedError(absl::StrCat(kDeviceVariable, "=", device_name,
                                            ": ", base::Printable(why)));
  if (!status.ok()) {
    const Status aborted = abort_cause();
    if (!aborted.ok()) status = aborted;
    // Tells the peers the cause, so that they do not blame this rank.
    Close(status);
  }
  return status;
}

Status GlooTransport::ConnectPairs(const BackendOptions& options) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      options.deadline - Clock::now());
  context_->setTimeout(
      std::clamp(left, std::chrono::milliseconds(1), kForever));
  std::string why;
  std::vector<std::vector<char>> own(world_size());
  const bool listens = Try(
      [&] {
        for (int peer = 0; peer < world_size(); ++peer) {
          if (peer == rank()) continue;
          own[peer] = context_->createPair(peer)->address().bytes();
        }
      },
      &why);
  if (!listens) return UnavailableError(base::Printable(why));
  const std::stop_callback interrupted(options.interruption.token(), [&] {
    Abort(ToAbortCause(options.interruption.status()));
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer != rank()) Try([&] { context_->getPair(peer)->close(); });
    }
  });
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    const uint64_t bytes = own[peer].size();
    Status sent =
        tcp_->Write(peer, &bytes, sizeof(bytes), own[peer].data(), bytes);
    if (!sent.ok()) return sent;
  }
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    uint64_t bytes = 0;
    Status status = tcp_->Read(peer, &bytes, sizeof(bytes));
    if (!status.ok()) return status;
    std::vector<char> address(
        std::min<uint64_t>(bytes, ::gloo::transport::Address::kMaxByteSize));
    status = tcp_->Read(peer, address.data(), address.size());
    if (!status.ok()) return status;
    waiting_for_.store(peer);
    if (!Try([&] { context_->getPair(peer)->connect(address); }, &why)) {
      Status aborted = abort_cause();
      if (!aborted.ok()) return aborted;
      Status gone = CheckPeers();
      if (!gone.ok()) return gone;
      return UnavailableError(
          absl::StrCat("rank ", peer, ": ", base::Printable(why)));
    }
  }
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank()) PostReceives(peer);
  }
  waiting_for_.store(-1);
  context_->setTimeout(kForever);
  return OkStatus();
}

std::unique_ptr<Buffer> GlooTransport::CreateBuffer(void* data, size_t bytes) {
  return std::make_unique<GlooBuffer>(*this, data, bytes);
}

template <typename Post>
Status GlooTransport::Start(int peer, Post&& post) {
  Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  return Try(post) ? OkStatus() : Broken(peer, nullptr);
}

Status GlooTransport::Wait(int peer, UnboundBuffer& buffer, bool sends) {
  waiting_for_.store(peer);
  {
    MutexLock lock(mutex_);
    // After this check an abort ends the wait.
    Status aborted = abort_cause();
    if (!aborted.ok()) return aborted;
    waited_ = &buffer;
  }
  bool is_done = false;
  const bool is_whole = Try([&] {
    is_done = sends ? buffer.waitSend(kForever) : buffer.waitRecv(kForever);
  });
  {
    MutexLock lock(mutex_);
    waited_ = nullptr;
  }
  if (is_done) {
    waiting_for_.store(-1);
    return OkStatus();
  }
  return is_whole ? abort_cause() : Broken(peer, &buffer);
}

Status GlooTransport::Broken(int peer, const UnboundBuffer* buffer) {
  // The library does not say whether it was the memory.
  if (buffer != nullptr && buffer->size > 0 &&
      !CanBeRead(buffer->ptr, buffer->size)) {
    return BadOwnMemory(rank(), buffer->ptr, buffer->size);
  }
  return Gone(peer);
}

void GlooTransport::Abort(const Status& cause) {
  tcp_->Abort(cause);
  MutexLock lock(mutex_);
  if (waited_ == nullptr) return;
  waited_->abortWaitSend();
  waited_->abortWaitRecv();
}

Status GlooTransport::Write(int peer, const void* head, size_t head_bytes,
                            const void* body, size_t body_bytes) {
  std::span first(static_cast<const std::byte*>(head), head_bytes);
  std::span second(static_cast<const std::byte*>(body), body_bytes);
  constexpr size_t kMost = kMessageBytes - sizeof(uint64_t);
  while (!first.empty() || !second.empty()) {
    const size_t of_first = std::min(first.size(), kMost);
    const size_t of_second = std::min(second.size(), kMost - of_first);
    Status sent =
        SendMessage(peer, first.first(of_first), second.first(of_second));
    if (!sent.ok()) return sent;
    first = first.subspan(of_first);
    second = second.subspan(of_second);
  }
  return OkStatus();
}

Status GlooTransport::SendMessage(int peer, std::span<const std::byte> head,
                                  std::span<const std::byte> body) {
  Peer& state = peers_[peer];
  if (state.sends == nullptr) {
    constexpr size_t kBytes = kUnsent * kMessageBytes;
    state.outgoing = std::make_unique_for_overwrite<std::byte[]>(kBytes);
    state.sends = context_->createUnboundBuffer(state.outgoing.get(), kBytes);
  }
  if (state.written - state.sent == kUnsent) {
    Status sent = Wait(peer, *state.sends, /*sends=*/true);
    if (!sent.ok()) return sent;
    ++state.sent;
  }
  const size_t offset = state.written % kUnsent * kMessageBytes;
  std::byte* to = state.outgoing.get() + offset;
  const uint64_t bytes = head.size() + body.size();
  std::memcpy(to, &bytes, sizeof(bytes));
  to = std::ranges::copy(head, to + sizeof(bytes)).out;
  std::ranges::copy(body, to);
  return Start(peer, [&] {
    state.sends->send(peer, ToNoteSlot(state.written), offset,
                      sizeof(bytes) + bytes);
    ++state.written;
  });
}

void GlooTransport::PostReceives(int peer) {
  Peer& state = peers_[peer];
  if (state.receives == nullptr) {
    constexpr size_t kBytes = kPosted * kMessageBytes;
    state.incoming = std::make_unique_for_overwrite<std::byte[]>(kBytes);
    state.receives =
        context_->createUnboundBuffer(state.incoming.get(), kBytes);
  }
  Try([&] {
    while (state.posted - state.read < kPosted) {
      state.receives->recv(peer, ToNoteSlot(state.posted),
                           state.posted % kPosted * kMessageBytes,
                           kMessageBytes);
      ++state.posted;
    }
  });
}

Status GlooTransport::Read(int peer, void* data, size_t bytes) {
  Peer& state = peers_[peer];
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    if (state.rest.empty()) {
      Status aborted = abort_cause();
      if (!aborted.ok()) return aborted;
      if (state.posted == state.read) return Broken(peer, nullptr);
      Status came = Wait(peer, *state.receives, /*sends=*/false);
      if (!came.ok()) return came;
      const std::byte* const message =
          state.incoming.get() + state.read % kPosted * kMessageBytes;
      uint64_t size = 0;
      std::memcpy(&size, message, sizeof(size));
      if (size == 0 || size > kMessageBytes - sizeof(size)) {
        return InternalError(
            absl::StrCat("rank ", peer, " sent a message of ", size, " bytes"));
      }
      state.rest = {message + sizeof(size), size};
    }
    const size_t part = std::min(bytes, state.rest.size());
    std::ranges::copy(state.rest.first(part), to);
    state.rest = state.rest.subspan(part);
    to += part;
    bytes -= part;
    if (!state.rest.empty()) break;
    ++state.read;
    PostReceives(peer);
  }
  return OkStatus();
}

void GlooTransport::Close(const Status& goodbye) {
  const Instant deadline = Clock::now() + kClosing;
  for (Peer& peer : peers_) {
    // A peer may still have to read what this rank has written.
    if (!IsCancelled(goodbye)) break;
    Try([&] {
      while (peer.sent < peer.written && Clock::now() < deadline) {
        if (peer.sends->waitSend(deadline)) ++peer.sent;
      }
    });
  }
  // Peers that see a pair end read the goodbye.
  tcp_->Close(goodbye);
  peers_.clear();
  context_.reset();
  device_.reset();
}

}  // namespace

StatusOr<std::unique_ptr<Transport>> ConnectGloo(absl::string_view backend,
                                                 const BackendOptions& options,
                                                 uint64_t tuning) {
  const std::string name = FindDeviceName();
  StatusOr<std::shared_ptr<Device>> device = MakeDevice(name, options);
  if (!device.ok()) return device.status();
  StatusOr<std::unique_ptr<Transport>> tcp = ConnectTcp(
      backend, options,
      {.name = name == "TCP" ? "gloo" : "gloo_ib", .tuning = tuning});
  if (!tcp.ok()) return tcp.status();
  auto transport = std::make_unique<GlooTransport>(*std::move(tcp));
  Status status = transport->Open(*std::move(device), name, options);
  if (!status.ok()) return status;
  return transport;
}

}  // namespace muster::dataplane::cpu
