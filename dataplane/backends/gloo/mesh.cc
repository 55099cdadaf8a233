#include "dataplane/backends/gloo/mesh.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dataplane/backends/gloo/connect.h"
#include "dataplane/backends/gloo/farewell.h"
#include "dataplane/backends/gloo/gloo_errors.h"
#include "dataplane/backends/gloo/interface.h"
#include "dataplane/backends/gloo/lines.h"
#include "dataplane/backends/gloo/loop_handlers.h"
#include "dataplane/backends/gloo/rendezvous.h"
#include "dataplane/culprit.h"
#include "dataplane/mutex.h"
#include "glog/logging.h"

namespace muster::dataplane::gloo_internal {
namespace {

// Gloo closes every connection of a context when one of its waits times out,
// before anybody could say farewell. So its own timeouts are put out of reach,
// and whoever owns the deadline calls Mesh::Abort.
constexpr std::chrono::milliseconds kNever = std::chrono::hours(24 * 365 * 10);

// How long the end of a connection may take to reach all of its buffers, once
// one of them has reported it.
constexpr std::chrono::milliseconds kClosing = std::chrono::seconds(5);

// How long leaving waits for peers that are only just joining and have not yet
// announced that they receive a farewell.
constexpr std::chrono::milliseconds kFarewellPatience{500};

// Slots of Buffers are below: collectives number theirs from 1, sends and
// receives from kPointToPointSlot.
constexpr uint64_t kFarewellSlot = ~uint64_t{0};
constexpr uint64_t kTripwireSlot = ~uint64_t{0} - 1;

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

class GlooMesh;

// Memory of a collective: moves on the lines. What has failed leaves parts
// under way, but nobody moves them any more.
class LineBuffer : public Buffer {
 public:
  LineBuffer(GlooMesh& mesh, void* data)
      : mesh_(mesh), data_(static_cast<std::byte*>(data)) {}

  absl::Status Receive(int peer, uint64_t slot, size_t offset,
                       size_t bytes) override;
  absl::Status Send(int peer, uint64_t slot, size_t offset,
                    size_t bytes) override;
  absl::Status WaitReceive(int peer) override;
  absl::Status WaitSend(int peer) override;

 private:
  // A send or receive that was not waited for.
  struct Posted {
    int peer;
    uint64_t number;
  };
  // The oldest with `peer`.
  static uint64_t Take(std::deque<Posted>& posted, int peer);

  GlooMesh& mesh_;
  std::byte* const data_;
  std::deque<Posted> sends_;
  std::deque<Posted> receives_;
};

// Memory of sends and receives, which several threads move, and large tensors.
class GlooBuffer : public Buffer {
 public:
  GlooBuffer(GlooMesh& mesh, void* data, size_t bytes, bool quiet);
  ~GlooBuffer() override;

  absl::Status Receive(int peer, uint64_t slot, size_t offset,
                       size_t bytes) override;
  absl::Status Send(int peer, uint64_t slot, size_t offset,
                    size_t bytes) override;
  absl::Status WaitReceive(int peer) override;
  absl::Status WaitSend(int peer) override;

  void WakeWaiters() {
    buffer_->abortWaitRecv();
    buffer_->abortWaitSend();
  }

 private:
  template <typename Function>
  absl::Status Post(int peer, Function&& function);
  template <typename Function>
  absl::Status Await(int peer, Function&& function);

  GlooMesh& mesh_;
  const bool quiet_;  // See CreateQuietBuffer.
  const std::unique_ptr<transport::UnboundBuffer> buffer_;
};

class GlooMesh : public Mesh {
 public:
  explicit GlooMesh(const BackendOptions& options)
      : Mesh(options.rank, options.world_size),
        lines_(options.rank, options.world_size),
        peers_(options.world_size) {}
  ~GlooMesh() override;

  absl::Status Open(const BackendOptions& options);

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override {
    return std::make_unique<LineBuffer>(*this, data);
  }
  std::unique_ptr<Buffer> CreateGlooBuffer(void* data, size_t bytes) override {
    return std::make_unique<GlooBuffer>(*this, data, bytes, /*quiet=*/false);
  }
  std::unique_ptr<Buffer> CreateQuietBuffer(void* data, size_t bytes) override {
    return std::make_unique<GlooBuffer>(*this, data, bytes, /*quiet=*/true);
  }
  absl::Status Write(int peer, const void* head, size_t head_bytes,
                     const void* body, size_t body_bytes) override;
  absl::Status Read(int peer, void* data, size_t bytes) override;
  void Abort(const absl::Status& cause) override;
  absl::Status abort_cause() const override;
  absl::Status CheckPeers() override;
  void Close(const absl::Status& farewell) override;

 private:
  friend class GlooBuffer;
  friend class LineBuffer;

  struct Peer {
    // Where its farewell arrives, and a receive to which it never sends: only
    // the end of the connection ends that one.
    FarewellBytes farewell = {};
    std::unique_ptr<transport::UnboundBuffer> farewell_buffer;
    std::unique_ptr<transport::UnboundBuffer> tripwire;
    bool gone = false;
    absl::Status how;  // it went
  };

  absl::Status CreateDevice(const BackendOptions& options);
  absl::Status ListenForFarewell(int peer);
  // Does what waits for `peer` on its line.
  template <typename Function>
  absl::Status OnLine(int peer, Function&& function);
  // Whether its connection has ended, however.
  bool HasGone(int peer);
  void Look(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(peers_mutex_);
  // How `peer`, whose connection has just failed, went.
  absl::Status Gone(int peer, bool quiet);
  void NoteGone(int peer, const std::string& transport_error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(peers_mutex_);

  // Constant once open. Destroyed from below: the device's handlers after it,
  // the context before it.
  std::unique_ptr<LoopSpinner> spinner_;
  std::unique_ptr<LoopYielder> yielder_;
  std::shared_ptr<transport::tcp::Device> device_;
  std::shared_ptr<transport::Context> context_;

  Lines lines_;

  mutable Mutex mutex_;
  absl::Status abort_cause_ ABSL_GUARDED_BY(mutex_);
  // Those whose waiters an abort must wake.
  std::unordered_set<GlooBuffer*> buffers_ ABSL_GUARDED_BY(mutex_);

  // Held while looking at a peer's farewell; may wait a moment for its end.
  // Taken before mutex_.
  Mutex peers_mutex_;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(peers_mutex_);
  // How the first peer went that did not leave in peace.
  absl::Status first_broken_ ABSL_GUARDED_BY(peers_mutex_);
};

template <typename Function>
absl::Status GlooMesh::OnLine(int peer, Function&& function) {
  waiting_for_.store(peer);
  // Looked at after waiting_for_ is set and before the wait: an abort that
  // comes later wakes it.
  absl::Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  switch (function()) {
    case Lines::Outcome::kDone:
      waiting_for_.store(-1);
      return absl::OkStatus();
    case Lines::Outcome::kWoken:
      return abort_cause();
    case Lines::Outcome::kBroken:
      break;
  }
  return Gone(lines_.broken_peer(), /*quiet=*/false);
}

uint64_t LineBuffer::Take(std::deque<Posted>& posted, int peer) {
  const auto oldest =
      std::find_if(posted.begin(), posted.end(),
                   [peer](const Posted& one) { return one.peer == peer; });
  CHECK(oldest != posted.end()) << "nothing under way with rank " << peer;
  const uint64_t number = oldest->number;
  posted.erase(oldest);
  return number;
}

absl::Status LineBuffer::Receive(int peer, uint64_t, size_t offset,
                                 size_t bytes) {
  absl::Status aborted = mesh_.abort_cause();
  if (!aborted.ok()) return aborted;
  receives_.push_back(
      {peer, mesh_.lines_.PostReceive(peer, data_ + offset, bytes)});
  return absl::OkStatus();
}

absl::Status LineBuffer::Send(int peer, uint64_t, size_t offset, size_t bytes) {
  absl::Status aborted = mesh_.abort_cause();
  if (!aborted.ok()) return aborted;
  sends_.push_back({peer, mesh_.lines_.PostSend(peer, data_ + offset, bytes)});
  return absl::OkStatus();
}

absl::Status LineBuffer::WaitReceive(int peer) {
  return mesh_.OnLine(peer, [&] {
    return mesh_.lines_.AwaitReceive(peer, Take(receives_, peer));
  });
}

absl::Status LineBuffer::WaitSend(int peer) {
  return mesh_.OnLine(
      peer, [&] { return mesh_.lines_.AwaitSend(peer, Take(sends_, peer)); });
}

GlooBuffer::GlooBuffer(GlooMesh& mesh, void* data, size_t bytes, bool quiet)
    : mesh_(mesh),
      quiet_(quiet),
      buffer_(mesh.context_->createUnboundBuffer(data, bytes)) {
  MutexLock lock(mesh_.mutex_);
  mesh_.buffers_.insert(this);
}

GlooBuffer::~GlooBuffer() {
  MutexLock lock(mesh_.mutex_);
  mesh_.buffers_.erase(this);
}

template <typename Function>
absl::Status GlooBuffer::Post(int peer, Function&& function) {
  absl::Status aborted = mesh_.abort_cause();
  if (!aborted.ok()) return aborted;
  mesh_.yielder_->Posting(true);
  const bool posted = Guard(function).ok();
  mesh_.yielder_->Posting(false);
  return posted ? absl::OkStatus() : mesh_.Gone(peer, quiet_);
}

template <typename Function>
absl::Status GlooBuffer::Await(int peer, Function&& function) {
  if (!quiet_) mesh_.waiting_for_.store(peer);
  // As in OnLine.
  absl::Status aborted = mesh_.abort_cause();
  if (!aborted.ok()) return aborted;
  bool done = false;
  absl::Status waited = Guard([&] { done = function(); });
  // If the connection ends right after what is waited for, Gloo may report its
  // end first; but only to who was waiting already.
  if (!waited.ok()) waited = Guard([&] { done = function(); });
  if (!waited.ok()) return mesh_.Gone(peer, quiet_);
  if (!done) return mesh_.abort_cause();
  if (!quiet_) mesh_.waiting_for_.store(-1);
  return absl::OkStatus();
}

absl::Status GlooBuffer::Receive(int peer, uint64_t slot, size_t offset,
                                 size_t bytes) {
  return Post(peer, [&] { buffer_->recv(peer, slot, offset, bytes); });
}

absl::Status GlooBuffer::Send(int peer, uint64_t slot, size_t offset,
                              size_t bytes) {
  return Post(peer, [&] { buffer_->send(peer, slot, offset, bytes); });
}

absl::Status GlooBuffer::WaitReceive(int peer) {
  return Await(peer, [&] { return buffer_->waitRecv(nullptr, kNever); });
}

absl::Status GlooBuffer::WaitSend(int peer) {
  return Await(peer, [&] { return buffer_->waitSend(nullptr, kNever); });
}

absl::Status GlooMesh::Open(const BackendOptions& options) {
  IgnoreBrokenPipes();
  absl::Status created = CreateDevice(options);
  if (!created.ok()) return created;

  std::vector<AddressBytes> own(world_size());
  absl::Status listening = Guard([&] {
    context_ = device_->createContext(rank(), world_size());
    context_->setTimeout(kNever);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      own[peer] = context_->createPair(peer)->address().bytes();
    }
  });
  if (!listening.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for ", world_size() - 1,
                     " peers: ", WithoutSourcePosition(listening.message())));
  }
  if (world_size() == 1) return absl::OkStatus();

  absl::StatusOr<LineAddress> lines = lines_.Listen(own[rank() == 0 ? 1 : 0]);
  if (!lines.ok()) return lines.status();
  Published published = {.addresses = own, .nonce = lines->nonce};
  published.addresses[rank()] = std::move(lines->socket);
  absl::StatusOr<PeerAddresses> remote = ExchangeAddresses(published, options);
  if (!remote.ok()) return remote.status();
  absl::Status status =
      ConnectPairs(*context_, own, remote->pairs, options.deadline,
                   [this](bool on) { on ? spinner_->On() : spinner_->Off(); });
  if (status.ok()) {
    for (const int socket : FindSockets(own, remote->pairs)) {
      yielder_->Watch(socket);
    }
  }
  for (int peer = 0; peer < world_size() && status.ok(); ++peer) {
    if (peer != rank()) status = ListenForFarewell(peer);
  }
  if (status.ok()) {
    status = lines_.Connect(remote->lines, options.deadline,
                            [this](int peer) { return HasGone(peer); });
  }
  return status;
}

absl::Status GlooMesh::CreateDevice(const BackendOptions& options) {
  absl::StatusOr<NetworkChoice> network = ChooseNetwork(options);
  if (!network.ok()) return network.status();
  transport::tcp::attr attributes;
  attributes.iface = network->interface_name;
  attributes.hostname = network->address;
  absl::Status created = Guard([&] {
    device_ = std::dynamic_pointer_cast<transport::tcp::Device>(
        transport::tcp::CreateDevice(attributes));
    if (device_ == nullptr) return;
    spinner_ = std::make_unique<LoopSpinner>(*device_);
    yielder_ = std::make_unique<LoopYielder>(*device_);
  });
  if (!created.ok() || device_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot use the network at ",
                     network->interface_name.empty()
                         ? absl::StrCat("address ", network->address)
                         : absl::StrCat("interface ", network->interface_name),
                     ": ", WithoutSourcePosition(created.message())));
  }
  return absl::OkStatus();
}

absl::Status GlooMesh::ListenForFarewell(int peer) {
  MutexLock lock(peers_mutex_);
  Peer& state = peers_[peer];
  absl::Status posted = Guard([&] {
    state.farewell_buffer = context_->createUnboundBuffer(
        state.farewell.data(), state.farewell.size());
    state.farewell_buffer->recv(peer, kFarewellSlot);
    state.tripwire = context_->createUnboundBuffer(nullptr, 0);
    state.tripwire->recv(peer, kTripwireSlot);
  });
  if (posted.ok()) return posted;
  absl::Status status = absl::UnavailableError(absl::StrCat(
      "rank ", peer,
      " closed its connection: ", WithoutSourcePosition(posted.message())));
  SetCulpritRank(status, peer);
  return status;
}

void GlooMesh::Abort(const absl::Status& cause) {
  MutexLock lock(mutex_);
  if (!abort_cause_.ok()) return;
  abort_cause_ = cause;
  for (GlooBuffer* buffer : buffers_) buffer->WakeWaiters();
  lines_.Wake();
}

absl::Status GlooMesh::Write(int peer, const void* head, size_t head_bytes,
                             const void* body, size_t body_bytes) {
  return OnLine(peer, [&] {
    return lines_.Write(peer, head, head_bytes, body, body_bytes);
  });
}

absl::Status GlooMesh::Read(int peer, void* data, size_t bytes) {
  return OnLine(peer, [&] { return lines_.Read(peer, data, bytes); });
}

absl::Status GlooMesh::abort_cause() const {
  MutexLock lock(mutex_);
  return abort_cause_;
}

absl::Status GlooMesh::CheckPeers() {
  MutexLock lock(peers_mutex_);
  for (int peer = 0; peer < world_size(); ++peer) Look(peer);
  return first_broken_;
}

void GlooMesh::Look(int peer) {
  Peer& state = peers_[peer];
  if (state.gone || state.tripwire == nullptr) return;
  // A wait that is aborted before it begins does not block: it throws if the
  // connection has ended and returns otherwise.
  state.tripwire->abortWaitRecv();
  const absl::Status status =
      Guard([&] { state.tripwire->waitRecv(nullptr, kNever); });
  if (!status.ok()) NoteGone(peer, WithoutSourcePosition(status.message()));
}

bool GlooMesh::HasGone(int peer) {
  MutexLock lock(peers_mutex_);
  Look(peer);
  return peers_[peer].gone;
}

absl::Status GlooMesh::Gone(int peer, bool quiet) {
  // So that a deadline that passes meanwhile names it.
  if (!quiet) waiting_for_.store(peer);
  absl::Status aborted = abort_cause();
  if (!aborted.ok()) return aborted;
  // A peer that went earlier may be the reason why this one went.
  absl::Status first = CheckPeers();
  if (!first.ok()) return first;
  MutexLock lock(peers_mutex_);
  Peer& state = peers_[peer];
  if (!state.gone) {
    const absl::Status status =
        Guard([&] { state.tripwire->waitRecv(nullptr, kClosing); });
    NoteGone(peer, WithoutSourcePosition(status.message()));
  }
  return first_broken_.ok() ? state.how : first_broken_;
}

void GlooMesh::NoteGone(int peer, const std::string& transport_error) {
  Peer& state = peers_[peer];
  state.gone = true;
  // Returns at once: the farewell has come, or the connection's end is
  // reported here too. Only then may its bytes be looked at.
  (void)Guard([&] { state.farewell_buffer->waitRecv(nullptr, kClosing); });
  state.how = InterpretFarewell(peer, state.farewell, transport_error);
  if (first_broken_.ok() && !LeftInPeace(state.farewell)) {
    first_broken_ = state.how;
  }
}

void GlooMesh::Close(const absl::Status& farewell) {
  // One that never opened has nobody to take leave of.
  if (context_ == nullptr || world_size() == 1) return;
  FarewellBytes bytes = EncodeFarewell(farewell);
  const Instant give_up = Clock::now() + kFarewellPatience;
  MutexLock lock(peers_mutex_);
  std::vector<std::unique_ptr<transport::UnboundBuffer>> sent(world_size());
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peers_[peer].tripwire == nullptr || peers_[peer].gone) continue;
    auto buffer = context_->createUnboundBuffer(bytes.data(), bytes.size());
    if (Guard([&] { buffer->send(peer, kFarewellSlot); }).ok()) {
      sent[peer] = std::move(buffer);
    }
  }
  // Normally they have left already.
  for (const auto& buffer : sent) {
    if (buffer == nullptr) continue;
    (void)Guard([&] {
      buffer->waitSend(std::max(
          std::chrono::milliseconds(1),
          std::chrono::duration_cast<std::chrono::milliseconds>(give_up -
                                                                Clock::now())));
    });
  }
  sent.clear();
  spinner_->On();
  for (int peer = 0; peer < world_size(); ++peer) {
    // Destroyed, not closed: close() resets the connection, and a farewell
    // that is still on its way is lost with it.
    if (peer != rank()) context_->getPair(peer).reset();
    peers_[peer].tripwire.reset();
    peers_[peer].farewell_buffer.reset();
  }
  // After the farewells: whoever sees its line end looks for one.
  lines_.Close();
  spinner_->Off();
}

GlooMesh::~GlooMesh() {
  if (spinner_ != nullptr) spinner_->On();
  {
    MutexLock lock(peers_mutex_);
    peers_.clear();
  }
  context_.reset();
  device_.reset();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mesh>> Mesh::Connect(
    const BackendOptions& options) {
  auto mesh = std::make_unique<GlooMesh>(options);
  absl::Status status = mesh->Open(options);
  if (!status.ok()) {
    return status;
  }
  return mesh;
}

}  // namespace muster::dataplane::gloo_internal
