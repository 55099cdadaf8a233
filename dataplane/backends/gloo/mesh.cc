#include "dataplane/backends/gloo/mesh.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dataplane/backends/gloo/farewell.h"
#include "dataplane/backends/gloo/interface.h"
#include "dataplane/backends/gloo/rendezvous.h"
#include "dataplane/culprit.h"
#include "dataplane/mutex.h"
#include "glog/logging.h"

namespace muster::dataplane::gloo_internal {
namespace {

namespace transport = ::gloo::transport;

// Gloo closes every connection of a context when one of its waits times out,
// before anybody could say farewell. So its own timeouts are put out of reach,
// and whoever owns the deadline calls Mesh::Abort.
constexpr std::chrono::milliseconds kNever = std::chrono::hours(24 * 365 * 10);

// How long the end of a connection may take to reach all of its buffers, once
// one of them has reported it.
constexpr std::chrono::milliseconds kClosing = std::chrono::seconds(5);

// How long those that are connected may take to say so.
constexpr std::chrono::milliseconds kProbing{20};

// How long leaving waits for peers that are only just joining and have not yet
// announced that they receive a farewell.
constexpr std::chrono::milliseconds kFarewellPatience{500};

// Slots of Buffers are below: collectives number theirs from 1.
constexpr uint64_t kFarewellSlot = ~uint64_t{0};
constexpr uint64_t kTripwireSlot = ~uint64_t{0} - 1;

// Gloo throws gloo::Exception and gloo::EnforceNotMet, which have only
// std::exception in common. Nothing but a Status leaves this file.
template <typename Function>
absl::Status Guard(Function&& function) {
  try {
    function();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::UnavailableError(error.what());
  }
}

// Gloo's texts begin with where in Gloo they were made: "[./a/b.cc:12] text".
std::string WithoutSourcePosition(absl::string_view text) {
  const size_t end = text.find("] ");
  if (text.empty() || text[0] != '[' || end == absl::string_view::npos) {
    return std::string(text);
  }
  return std::string(text.substr(end + 2));
}

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

// Gloo takes a descriptor out of its event loop by waiting for the loop's next
// turn, up to 10 ms later, for each connection made and each one closed. While
// a LoopSpinner is on, turns follow each other without pause.
class LoopSpinner : public transport::tcp::Handler {
 public:
  explicit LoopSpinner(transport::tcp::Device& device)
      : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    device.registerDescriptor(descriptor_, EPOLLIN, this);
  }
  // After the device, whose loop calls it.
  ~LoopSpinner() override { ::close(descriptor_); }

  void On() { eventfd_write(descriptor_, 1); }
  void Off() {
    eventfd_t value = 0;
    eventfd_read(descriptor_, &value);
  }

  void handleEvents(int) override {
    // The thread that waits for the turn needs a processor more than the loop.
    sched_yield();
  }

 private:
  const int descriptor_;
};

// Gloo lets the side with the greater address connect and the other one
// listen; compared as it stands in the socket address.
bool Connects(const AddressBytes& own, const AddressBytes& peer) {
  sockaddr_storage mine = {};
  sockaddr_storage theirs = {};
  std::memcpy(&mine, own.data(), std::min(own.size(), sizeof(mine)));
  std::memcpy(&theirs, peer.data(), std::min(peer.size(), sizeof(theirs)));
  int order = 0;
  if (mine.ss_family == AF_INET) {
    const auto& a = reinterpret_cast<const sockaddr_in&>(mine);
    const auto& b = reinterpret_cast<const sockaddr_in&>(theirs);
    order = std::memcmp(&a.sin_addr, &b.sin_addr, sizeof(a.sin_addr));
    if (order == 0) order = a.sin_port - b.sin_port;
  } else {
    const auto& a = reinterpret_cast<const sockaddr_in6&>(mine);
    const auto& b = reinterpret_cast<const sockaddr_in6&>(theirs);
    order = std::memcmp(&a.sin6_addr, &b.sin6_addr, sizeof(a.sin6_addr));
    if (order == 0) order = a.sin6_port - b.sin6_port;
  }
  return order > 0;
}

class GlooMesh;

class GlooBuffer : public Buffer {
 public:
  GlooBuffer(GlooMesh& mesh, void* data, size_t bytes);
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
  const std::unique_ptr<transport::UnboundBuffer> buffer_;
};

class GlooMesh : public Mesh {
 public:
  explicit GlooMesh(const BackendOptions& options)
      : Mesh(options.rank, options.world_size), peers_(options.world_size) {}
  ~GlooMesh() override;

  absl::Status Open(const BackendOptions& options);

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override {
    return std::make_unique<GlooBuffer>(*this, data, bytes);
  }
  void Abort(const absl::Status& cause) override;
  absl::Status abort_cause() const override;
  absl::Status CheckPeers() override;
  void Close(const absl::Status& farewell) override;

 private:
  friend class GlooBuffer;

  struct Peer {
    // Where its farewell arrives, and a receive to which it never sends: only
    // the end of the connection ends that one.
    FarewellBytes farewell = {};
    std::unique_ptr<transport::UnboundBuffer> farewell_buffer;
    std::unique_ptr<transport::UnboundBuffer> tripwire;
    bool gone = false;
  };

  absl::Status CreateDevice(const BackendOptions& options);
  absl::Status ConnectPairs(const std::vector<AddressBytes>& own,
                            const std::vector<AddressBytes>& remote,
                            Instant deadline);
  // Closes the pairs of `peers`, on one of which another thread may be waiting,
  // and returns which were not connected.
  std::vector<int> CloseUnconnected(const std::vector<int>& peers,
                                    const std::vector<AddressBytes>& remote);
  absl::Status ListenForFarewell(int peer);
  // How `peer`, whose connection has just failed, went.
  absl::Status Gone(int peer);
  void NoteGone(int peer, const std::string& transport_error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(peers_mutex_);

  // Constant once open. Destroyed from below: the spinner after the device,
  // the context before it.
  std::unique_ptr<LoopSpinner> spinner_;
  std::shared_ptr<transport::tcp::Device> device_;
  std::shared_ptr<transport::Context> context_;

  mutable Mutex mutex_;
  absl::Status abort_cause_ ABSL_GUARDED_BY(mutex_);
  // Those whose waiters an abort must wake.
  std::unordered_set<GlooBuffer*> buffers_ ABSL_GUARDED_BY(mutex_);

  // Held while looking at a peer's farewell; may wait a moment for its end.
  // Taken before mutex_.
  Mutex peers_mutex_;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(peers_mutex_);
  absl::Status first_gone_ ABSL_GUARDED_BY(peers_mutex_);
};

GlooBuffer::GlooBuffer(GlooMesh& mesh, void* data, size_t bytes)
    : mesh_(mesh), buffer_(mesh.context_->createUnboundBuffer(data, bytes)) {
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
  return Guard(function).ok() ? absl::OkStatus() : mesh_.Gone(peer);
}

template <typename Function>
absl::Status GlooBuffer::Await(int peer, Function&& function) {
  mesh_.waiting_for_.store(peer);
  // Looked at after waiting_for_ is set and before the wait: an abort that
  // comes later finds the wait and wakes it.
  absl::Status aborted = mesh_.abort_cause();
  if (!aborted.ok()) return aborted;
  bool done = false;
  const absl::Status waited = Guard([&] { done = function(); });
  mesh_.waiting_for_.store(-1);
  if (!waited.ok()) return mesh_.Gone(peer);
  return done ? absl::OkStatus() : mesh_.abort_cause();
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

  absl::StatusOr<std::vector<AddressBytes>> remote =
      ExchangeAddresses(own, options);
  if (!remote.ok()) return remote.status();
  return ConnectPairs(own, *remote, options.deadline);
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
  });
  if (!created.ok() || device_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot use the network at ",
                     network->interface_name.empty()
                         ? absl::StrCat("address ", network->address)
                         : absl::StrCat("interface ", network->interface_name),
                     ": ", WithoutSourcePosition(created.message())));
  }
  spinner_ = std::make_unique<LoopSpinner>(*device_);
  return absl::OkStatus();
}

// First every connection that this side opens: that needs nothing of the peer
// but its listening socket. Then the others, which by then their peers are
// opening at the same time; so one thread connects to all of them, and no
// order of ranks can block.
absl::Status GlooMesh::ConnectPairs(const std::vector<AddressBytes>& own,
                                    const std::vector<AddressBytes>& remote,
                                    Instant deadline) {
  std::vector<int> order;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank() && Connects(own[peer], remote[peer])) {
      order.push_back(peer);
    }
  }
  const size_t opened_here = order.size();
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank() && !Connects(own[peer], remote[peer])) {
      order.push_back(peer);
    }
  }

  // Gloo's own timeout of a connection is fixed before the rendezvous, so the
  // deadline is kept by a thread that closes what is not connected by then.
  Mutex mutex;
  CondVar changed;
  size_t connected = 0;
  bool expired = false;
  bool finished = false;
  std::vector<int> missing;
  std::thread timer([&] {
    {
      MutexLock lock(mutex);
      while (!finished) {
        if (deadline == Instant::max()) {
          changed.Wait(mutex);
        } else if (!changed.WaitUntil(mutex, deadline) && !finished) {
          break;
        }
      }
      if (finished) return;
      expired = true;
    }
    std::vector<int> waiting_for;
    {
      MutexLock lock(mutex);
      waiting_for.assign(order.begin() + connected, order.end());
    }
    missing = CloseUnconnected(waiting_for, remote);
  });

  absl::Status status;
  int failed = -1;
  spinner_->On();
  for (size_t i = 0; i < order.size() && status.ok(); ++i) {
    if (i == opened_here) spinner_->Off();
    const int peer = order[i];
    status = Guard([&] { context_->getPair(peer)->connect(remote[peer]); });
    if (!status.ok()) failed = peer;
    MutexLock lock(mutex);
    if (expired) break;
    ++connected;
  }
  spinner_->Off();
  {
    MutexLock lock(mutex);
    finished = true;
  }
  changed.NotifyAll();
  timer.join();

  if (expired) {
    status = absl::DeadlineExceededError(
        absl::StrCat(DescribeRanks(missing), " did not connect to this rank (",
                     rank(), ") in time; ", world_size() - 1 - missing.size(),
                     " of ", world_size() - 1, " peers did"));
    if (!missing.empty()) SetCulpritRank(status, missing.front());
    return status;
  }
  if (!status.ok()) {
    status = absl::UnavailableError(
        absl::StrCat("cannot connect to rank ", failed, ": ",
                     WithoutSourcePosition(status.message())));
    SetCulpritRank(status, failed);
    return status;
  }
  for (const int peer : order) {
    status = ListenForFarewell(peer);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<int> GlooMesh::CloseUnconnected(
    const std::vector<int>& peers, const std::vector<AddressBytes>& remote) {
  // Gloo does not tell whether a pair is connected, but connecting one that is
  // returns at once, and one that is not, when it is closed.
  Mutex mutex;
  std::vector<int> missing = peers;
  std::vector<std::thread> probes;
  for (const int peer : peers) {
    probes.emplace_back([&, peer] {
      const absl::Status status =
          Guard([&] { context_->getPair(peer)->connect(remote[peer]); });
      MutexLock lock(mutex);
      if (status.ok()) std::erase(missing, peer);
    });
  }
  std::this_thread::sleep_for(kProbing);
  std::vector<int> result;
  {
    MutexLock lock(mutex);
    result = missing;
  }
  for (const int peer : peers) {
    (void)Guard([&] { context_->getPair(peer)->close(); });
  }
  for (std::thread& probe : probes) probe.join();
  return result;
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
}

absl::Status GlooMesh::abort_cause() const {
  MutexLock lock(mutex_);
  return abort_cause_;
}

absl::Status GlooMesh::CheckPeers() {
  MutexLock lock(peers_mutex_);
  for (int peer = 0; peer < world_size(); ++peer) {
    Peer& state = peers_[peer];
    if (state.gone || state.tripwire == nullptr) continue;
    // A wait that is aborted before it begins does not block: it throws if the
    // connection has ended and returns otherwise.
    state.tripwire->abortWaitRecv();
    const absl::Status status =
        Guard([&] { state.tripwire->waitRecv(nullptr, kNever); });
    if (!status.ok()) NoteGone(peer, WithoutSourcePosition(status.message()));
  }
  return first_gone_;
}

absl::Status GlooMesh::Gone(int peer) {
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
  return first_gone_;
}

void GlooMesh::NoteGone(int peer, const std::string& transport_error) {
  Peer& state = peers_[peer];
  state.gone = true;
  // Returns at once: the farewell has come, or the connection's end is
  // reported here too. Only then may its bytes be looked at.
  (void)Guard([&] { state.farewell_buffer->waitRecv(nullptr, kClosing); });
  if (first_gone_.ok()) {
    first_gone_ = InterpretFarewell(peer, state.farewell, transport_error);
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
