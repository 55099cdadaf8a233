#include "dataplane/cpu/transport/gloo_pairs.h"

#include <fcntl.h>
#include <gloo/transport/tcp/attr.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dataplane/cpu/transport/interface.h"
#include "dataplane/cpu/transport/socket.h"
#include "dataplane/cpu/transport/transport_errors.h"

namespace muster::dataplane::cpu {
namespace {

// For Gloo's own waits. None is used.
constexpr std::chrono::milliseconds kTimeout = std::chrono::seconds(1);

// The limit for making a pair, which waits for this process alone.
constexpr std::chrono::seconds kMaking{10};

// The socket address of a connection's end, in a form that can be compared.
using Name = std::string;

Name GetName(const sockaddr_storage& address) {
  const AddressBytes bytes(
      reinterpret_cast<const char*>(&address),
      reinterpret_cast<const char*>(&address) + sizeof(address));
  return {bytes.data(), AddressSize(bytes)};
}

// The name of this end (getsockname) or the other end (getpeername). Empty if
// `socket` is no socket or not connected.
Name GetName(int socket, decltype(&getsockname) get) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  return get(socket, generic, &bytes) == 0 ? GetName(address) : "";
}

// The socket of this process whose ends are `here` and `there`, or -1. Gloo
// does not tell its sockets.
int FindSocket(const Name& here, const Name& there) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int socket = -1;
    if (absl::SimpleAtoi(entry.path().filename().native(), &socket) &&
        GetName(socket, &getpeername) == there &&
        GetName(socket, &getsockname) == here) {
      return socket;
    }
  }
  return -1;
}

}  // namespace

Pairs::Pairs(int rank, int world_size, const Listener& listener)
    : rank_(rank),
      world_size_(world_size),
      listener_(listener),
      is_open_(world_size),
      pairs_(world_size) {}

Pairs::~Pairs() {
  if (spinner_ != nullptr) spinner_->On();
  context_.reset();
  device_.reset();
}

StatusOr<AddressBytes> Pairs::Start(const BackendOptions& options) {
  StatusOr<NetworkChoice> network = ChooseNetwork(options);
  if (!network.ok()) return network.status();
  attributes_.iface = network->interface_name;
  attributes_.hostname = network->address;
  Status created = Guard([&] {
    attributes_ = gloo_transport::tcp::CreateDeviceAttr(attributes_);
  });
  if (IsResourceExhausted(created)) return created;
  if (!created.ok()) {
    return UnavailableError(
        absl::StrCat("cannot use the network at ",
                     network->interface_name.empty()
                         ? absl::StrCat("address ", network->address)
                         : absl::StrCat("interface ", network->interface_name),
                     ": ", WithoutSourcePosition(created.message())));
  }
  const auto* const bytes = reinterpret_cast<const char*>(&attributes_.ai_addr);
  return AddressBytes(bytes, bytes + sizeof(attributes_.ai_addr));
}

void Pairs::MakeDevice() {
  if (context_ != nullptr) return;
  device_ = std::make_shared<gloo_transport::tcp::Device>(attributes_);
  spinner_ = std::make_unique<LoopSpinner>(*device_);
  yielder_ = std::make_unique<LoopYielder>(*device_);
  context_ = device_->createContext(rank_, world_size_);
  context_->setTimeout(kTimeout);
}

void Pairs::Spin(bool on) {
  MutexLock lock(mutex_);
  spins_ += on ? 1 : -1;
  if (on && spins_ == 1) spinner_->On();
  if (!on && spins_ == 0) spinner_->Off();
}

Status Pairs::AwaitMade(const Pair& pair) {
  while (!aborted_ &&
         (pair.phase == Phase::kOffering || pair.phase == Phase::kMaking)) {
    changed_.Wait(mutex_);
  }
  return aborted_ ? CancelledError("aborted") : pair.failure;
}

Status Pairs::End(int peer, const Status& status) {
  Pair& pair = pairs_[peer];
  pair.phase = status.ok() ? Phase::kOpen : Phase::kFailed;
  pair.failure = status;
  is_open_[peer].store(status.ok(), std::memory_order_release);
  changed_.NotifyAll();
  return status;
}

Status Pairs::Open(int peer) {
  if (IsOpen(peer)) return OkStatus();
  {
    MutexLock lock(mutex_);
    Pair& pair = pairs_[peer];
    if (aborted_ || pair.phase != Phase::kNone) return AwaitMade(pair);
    pair.phase = Phase::kOffering;
  }
  const StatusOr<int> socket = listener_.Offer(peer);
  {
    MutexLock lock(mutex_);
    Pair& pair = pairs_[peer];
    // The peer has offered a connection itself, or is about to.
    if (pair.phase != Phase::kOffering || (socket.ok() && *socket < 0)) {
      return AwaitMade(pair);
    }
    if (!socket.ok()) return End(peer, socket.status());
    pair.phase = Phase::kMaking;
  }
  return Make(peer, *socket);
}

void Pairs::Take(int peer, int socket,
                 const std::function<void(Listener::Reply reply)>& tell) {
  {
    MutexLock lock(mutex_);
    Pair& pair = pairs_[peer];
    // If two offers cross, that of the lower rank is taken.
    const bool crosses = pair.phase == Phase::kOffering;
    if (aborted_ || (pair.phase != Phase::kNone && !crosses)) {
      return tell(Listener::Reply::kRefused);
    }
    if (crosses && rank_ < peer) return tell(Listener::Reply::kNotNeeded);
    pair.phase = Phase::kMaking;
  }
  // Send the reply before anything else uses the connection.
  tell(Listener::Reply::kTaken);
  Make(peer, socket).IgnoreError();
}

Status Pairs::InLoop(const std::function<void()>& function) {
  Status status;
  spinner_->Run([&] { status = Guard(function); });
  return status;
}

// Gloo connects a pair to the first client of the port at which it listens.
// This process is the first client: it makes the port and connects to it in one
// iteration of the loop, which accepts in a later one. Then it replaces its own
// connection with the peer's.
Status Pairs::MakeOnce(int peer, int socket) {
  ::gloo::transport::Pair* pair = nullptr;
  AddressBytes port;
  int own = -1;
  const absl::Cleanup closer = [&] {
    if (own >= 0) ::close(own);
  };
  int error = 0;
  Status status = InLoop([&] {
    pair = context_->createPair(peer).get();
    port = pair->address().bytes();
    own = MakeSocket(port);
    if (own < 0 || connect(own, Generic(port), AddressSize(port)) != 0) {
      error = errno;
    }
  });
  if (status.ok() && error != 0 && error != EINPROGRESS) {
    status = Failed("a port of its own", error);
  }
  if (!status.ok()) return status;
  const Name here(port.data(), AddressSize(port));
  bool is_made = false;
  const Instant deadline = Clock::now() + kMaking;
  while (!is_made) {
    char byte = 0;
    // Another connection came first, and Gloo has closed the port.
    const bool waits = recv(own, &byte, 1, MSG_DONTWAIT) < 0 &&
                       (IsTemporary(errno) || errno == ENOTCONN);
    if (!waits) return AbortedError("another connection came first");
    if (Clock::now() >= deadline) {
      return UnavailableError("cannot connect to a port of its own");
    }
    status = InLoop([&] {
      const int accepted = FindSocket(here, GetName(own, &getsockname));
      if (accepted < 0) return;
      auto* const handler = dynamic_cast<gloo_transport::tcp::Handler*>(pair);
      device_->unregisterDescriptor(accepted, handler);
      // Gloo does this for its own connections.
      SendAtOnce(socket);
      dup3(socket, accepted, O_CLOEXEC);
      device_->registerDescriptor(accepted, EPOLLIN, handler);
      // Until other threads may use the pair, only this thread closes its
      // socket, when the connection has ended.
      yielder_->Watch(accepted);
      is_made = true;
    });
    if (!status.ok()) return status;
  }
  return status;
}

Status Pairs::Make(int peer, int socket) {
  Status made;
  {
    MutexLock lock(mutex_);
    // Guard's call is not seen by the analysis.
    made = Guard([&]() MUSTER_NO_THREAD_SAFETY_ANALYSIS { MakeDevice(); });
  }
  if (made.ok()) {
    Spin(true);
    do {
      made = MakeOnce(peer, socket);
    } while (IsAborted(made));
    Spin(false);
  }
  ::close(socket);
  if (!made.ok()) {
    made = ResourceExhaustedError(
        absl::StrCat("rank ", rank_, " cannot make a connection with rank ",
                     peer, ": ", WithoutSourcePosition(made.message())));
  }
  MutexLock lock(mutex_);
  return End(peer, made);
}

void Pairs::Abort() {
  MutexLock lock(mutex_);
  // A pair that is being made is not closed: closing waits for Gloo's thread.
  aborted_ = true;
  changed_.NotifyAll();
}

void Pairs::Close() {
  if (context_ == nullptr) return;
  spinner_->On();
  for (int peer = 0; peer < world_size_; ++peer) {
    // Destroy, do not close: close() resets the connection and loses the data
    // that is still on its way.
    context_->getPair(peer).reset();
  }
  spinner_->Off();
}

}  // namespace muster::dataplane::cpu
