#include "dataplane/backends/gloo/pairs.h"

#include <gloo/transport/address.h>
#include <gloo/transport/tcp/attr.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dataplane/backends/gloo/gloo_errors.h"
#include "dataplane/backends/gloo/interface.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::gloo_internal {
namespace {

// Making a pair waits for nobody's program: either side connects only when it
// knows that the other one listens, and accepting is for Gloo's thread. Gloo
// gives up after five times this.
constexpr std::chrono::milliseconds kConnecting = std::chrono::seconds(1);

// A socket's address, in the order in which Gloo compares two of them: as they
// stand in the socket address.
struct Endpoint {
  std::string host;
  uint16_t port = 0;

  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
};

Endpoint EndpointOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return {std::string(reinterpret_cast<const char*>(&v4.sin_addr),
                        sizeof(v4.sin_addr)),
            v4.sin_port};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return {std::string(reinterpret_cast<const char*>(&v6.sin6_addr),
                      sizeof(v6.sin6_addr)),
          v6.sin6_port};
}

Endpoint EndpointOf(const AddressBytes& bytes) {
  sockaddr_storage address = {};
  std::memcpy(&address, bytes.data(), std::min(bytes.size(), sizeof(address)));
  return EndpointOf(address);
}

// Gloo lets the side with the greater address connect and the other one
// listen.
bool Connects(const AddressBytes& own, const AddressBytes& peer) {
  return EndpointOf(own) > EndpointOf(peer);
}

}  // namespace

Pairs::Pairs(int rank, int world_size, const Greeter& greeter)
    : rank_(rank),
      world_size_(world_size),
      greeter_(greeter),
      is_open_(world_size),
      pairs_(world_size) {}

Pairs::~Pairs() {
  if (spinner_ != nullptr) spinner_->On();
  context_.reset();
  device_.reset();
}

absl::StatusOr<AddressBytes> Pairs::Start(const BackendOptions& options) {
  absl::StatusOr<NetworkChoice> network = ChooseNetwork(options);
  if (!network.ok()) return network.status();
  transport::tcp::attr attributes;
  attributes.iface = network->interface_name;
  attributes.hostname = network->address;
  absl::Status created = Guard([&] {
    attributes = transport::tcp::CreateDeviceAttr(attributes);
    device_ = std::make_shared<transport::tcp::Device>(attributes);
    spinner_ = std::make_unique<LoopSpinner>(*device_);
    yielder_ = std::make_unique<LoopYielder>(*device_);
    context_ = device_->createContext(rank_, world_size_);
    context_->setTimeout(kConnecting);
  });
  if (absl::IsResourceExhausted(created)) return created;
  if (!created.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot use the network at ",
                     network->interface_name.empty()
                         ? absl::StrCat("address ", network->address)
                         : absl::StrCat("interface ", network->interface_name),
                     ": ", WithoutSourcePosition(created.message())));
  }
  const auto* const bytes = reinterpret_cast<const char*>(&attributes.ai_addr);
  return AddressBytes(bytes, bytes + sizeof(attributes.ai_addr));
}

void Pairs::Spin(bool on) {
  MutexLock lock(mutex_);
  spins_ += on ? 1 : -1;
  if (on && spins_ == 1) spinner_->On();
  if (!on && spins_ == 0) spinner_->Off();
}

absl::StatusOr<AddressBytes> Pairs::ListenFor(int peer) {
  MutexLock lock(mutex_);
  Pair& state = pairs_[peer];
  if (aborted_) return absl::CancelledError("aborted");
  if (state.phase == Phase::kNone) {
    const absl::Status listens = Guard([&] {
      state.pair = context_->createPair(peer).get();
      state.address = state.pair->address().bytes();
    });
    state.phase = Phase::kListening;
    if (!listens.ok()) {
      state.phase = Phase::kFailed;
      state.failure = absl::ResourceExhaustedError(
          absl::StrCat("cannot listen for rank ", peer, ": ",
                       WithoutSourcePosition(listens.message())));
    }
  }
  // Which may as well be that it could not be connected to, when it asked.
  if (state.phase == Phase::kFailed) return state.failure;
  return state.address;
}

absl::Status Pairs::Open(int peer) {
  if (IsOpen(peer)) return absl::OkStatus();
  absl::StatusOr<AddressBytes> own = ListenFor(peer);
  if (!own.ok()) return own.status();
  absl::StatusOr<AddressBytes> theirs = greeter_.Ask(peer, *own);
  if (!theirs.ok()) return theirs.status();
  return Connect(peer, *theirs);
}

AddressBytes Pairs::Answer(int peer, const AddressBytes& theirs) {
  const absl::StatusOr<AddressBytes> own = ListenFor(peer);
  if (!own.ok()) return {};
  // So whoever has an answer need not wait until somebody connects to it.
  if (Connects(*own, theirs) && !Connect(peer, theirs).ok()) return {};
  return *own;
}

absl::Status Pairs::Connect(int peer, const AddressBytes& theirs) {
  ::gloo::transport::Pair* pair = nullptr;
  AddressBytes own;
  {
    MutexLock lock(mutex_);
    Pair& state = pairs_[peer];
    while (state.phase == Phase::kConnecting) changed_.Wait(mutex_);
    if (aborted_) return absl::CancelledError("aborted");
    if (state.phase != Phase::kListening) return state.failure;
    state.phase = Phase::kConnecting;
    pair = state.pair;
    own = state.address;
  }
  Spin(true);
  absl::Status connected = Guard([&] { pair->connect(theirs); });
  // Until others may use the pair, Gloo's thread alone closes its socket: when
  // that has ended. So there it is found, or is gone.
  if (connected.ok()) {
    spinner_->Run([&] {
      for (const int socket : FindSockets({own}, {theirs})) {
        yielder_->Watch(socket);
      }
    });
  }
  Spin(false);
  if (!connected.ok()) {
    connected = absl::UnavailableError(
        absl::StrCat("cannot connect to rank ", peer, ": ",
                     WithoutSourcePosition(connected.message())));
    SetCulpritRank(connected, peer);
  }
  MutexLock lock(mutex_);
  Pair& state = pairs_[peer];
  state.phase = connected.ok() ? Phase::kOpen : Phase::kFailed;
  state.failure = connected;
  changed_.NotifyAll();
  if (!connected.ok()) return connected;
  is_open_[peer].store(true, std::memory_order_release);
  return connected;
}

void Pairs::Abort() {
  MutexLock lock(mutex_);
  // One that is just being made is not closed: that waits for Gloo's thread.
  aborted_ = true;
}

void Pairs::Close() {
  if (context_ == nullptr) return;
  spinner_->On();
  for (int peer = 0; peer < world_size_; ++peer) {
    // Destroyed, not closed: close() resets the connection, and what is still
    // on its way is lost with it.
    context_->getPair(peer).reset();
  }
  spinner_->Off();
}

std::vector<int> FindSockets(const std::vector<AddressBytes>& own,
                             const std::vector<AddressBytes>& remote) {
  // A pair's accepted socket is where it has listened; one that it has opened
  // leads to where the peer has.
  std::set<Endpoint> accepted;
  std::set<Endpoint> opened;
  for (size_t peer = 0; peer < own.size(); ++peer) {
    if (own[peer].empty()) continue;
    accepted.insert(EndpointOf(own[peer]));
    opened.insert(EndpointOf(remote[peer]));
  }
  std::vector<int> sockets;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int socket = -1;
    if (!absl::SimpleAtoi(entry.path().filename().native(), &socket)) continue;
    sockaddr_storage here = {};
    sockaddr_storage there = {};
    socklen_t here_bytes = sizeof(here);
    socklen_t there_bytes = sizeof(there);
    if (getpeername(socket, reinterpret_cast<sockaddr*>(&there),
                    &there_bytes) != 0 ||
        getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_bytes) !=
            0) {
      continue;
    }
    if (accepted.contains(EndpointOf(here)) ||
        opened.contains(EndpointOf(there))) {
      sockets.push_back(socket);
    }
  }
  return sockets;
}

}  // namespace muster::dataplane::gloo_internal
