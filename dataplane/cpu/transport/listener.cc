#include "dataplane/cpu/transport/listener.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/socket.h"
#include "dataplane/cpu/transport/unproved_connections.h"
#include "dataplane/culprit.h"
#include "dataplane/observe/metrics.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

constexpr uint32_t kHelloMagic = 0x6d757374;

// An offer of one more connection, and its answer.
struct OfferMessage {
  uint32_t magic = 0x6d75736f;
  int32_t rank = 0;
  // The receiver's nonce.
  uint64_t nonce = 0;
  // Set only in the answer.
  Listener::Reply reply = {};

  bool IsFor(uint64_t own_nonce) const {
    return magic == OfferMessage().magic && nonce == own_nonce;
  }
};

Status Dropped(int peer) {
  return AbortedError(absl::StrCat("rank ", peer, " has dropped a connection"));
}

// Closes a connection that does not belong to the group.
void Refuse(int socket) {
  ::close(socket);
  refused_connections.fetch_add(1, std::memory_order_relaxed);
}

// The time after which a server without descriptors or threads tries again.
constexpr std::chrono::milliseconds kNoDescriptors{100};

uint64_t RandomNonce() {
  uint64_t nonce = 0;
  // Fails only if a signal comes while the machine boots.
  while (getrandom(&nonce, sizeof(nonce), 0) < 0 && errno == EINTR) {
  }
  return nonce;
}

// The host part of `address`.
absl::string_view GetHost(const AddressBytes& address) {
  const bool is_v4 = Generic(address)->sa_family == AF_INET;
  return {address.data() + (is_v4 ? offsetof(sockaddr_in, sin_addr)
                                  : offsetof(sockaddr_in6, sin6_addr)),
          is_v4 ? sizeof(in_addr) : sizeof(in6_addr)};
}

// False if the environment says that data shall use connections only.
bool ReadsMemory() {
  const char* const text = std::getenv("MUSTER_GLOO_PEER_MEMORY");
  return text == nullptr || absl::string_view(text) != "0";
}

}  // namespace

// The first message of each side.
struct Listener::Handshake {
  uint32_t magic = kHelloMagic;  // plus the connection's Kind
  int32_t rank = 0;
  // The receiver's nonce. Only members of this group know it.
  uint64_t nonce = 0;
  // The sender's mark.
  MarkPlace mark = {};
};

Listener::Listener(int rank, int world_size)
    : rank_(rank),
      woken_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      woken_error_(woken_ < 0 ? errno : 0),
      nonce_(RandomNonce()),
      world_size_(world_size),
      reads_memory_(ReadsMemory()),
      mark_(nonce_) {
  for (auto& connections : connections_) {
    connections.resize(world_size);
    connections[rank].state = State::kSettled;
  }
}

Listener::~Listener() {
  Stop();
  for (const auto& connections : connections_) {
    for (const Connection& connection : connections) {
      if (connection.socket >= 0) ::close(connection.socket);
    }
  }
  if (woken_ >= 0) ::close(woken_);
}

StatusOr<RankAddress> Listener::Listen(AddressBytes address) {
  const std::string what =
      absl::StrCat("cannot listen for ", world_size_ - 1, " peers");
  // Without the eventfd no wait could be ended.
  if (woken_ < 0) return Failed(what, woken_error_);
  auto* const generic = reinterpret_cast<sockaddr*>(address.data());
  // The port has the same offset in both families.
  std::memset(address.data() + offsetof(sockaddr_in, sin_port), 0,
              sizeof(in_port_t));
  listening_socket_ = MakeSocket(address);
  auto size = static_cast<socklen_t>(AddressSize(address));
  // Leaves room for clients that are not of the group.
  const int backlog = kConnectionKinds * world_size_ +
                      static_cast<int>(UnprovedConnections::kLimit);
  if (listening_socket_ < 0 || bind(listening_socket_, generic, size) != 0 ||
      listen(listening_socket_, backlog) != 0 ||
      getsockname(listening_socket_, generic, &size) != 0) {
    return Failed(what, errno);
  }
  own_ = address;
  return RankAddress{std::move(address), nonce_};
}

Status Listener::StartConnecting(int kind, int peer) {
  const AddressBytes& address = addresses_[peer].socket;
  Connection& connection = connections_[kind][peer];
  ++connection.attempts;
  connection.socket = MakeSocket(address);
  connection.state = State::kConnecting;
  if (connection.socket >= 0 &&
      connect(connection.socket, Generic(address), AddressSize(address)) == 0) {
    return OkStatus();
  }
  const int error = errno;
  if (connection.socket >= 0 && error == EINPROGRESS) return OkStatus();
  if (connection.socket < 0 || IsOfThisProcess(error)) {
    return Failed(absl::StrCat("rank ", rank_, " cannot connect to its peers"),
                  error);
  }
  connection.Refused(error);
  return OkStatus();
}

void Listener::Connection::Refused(int reason) {
  ::close(std::exchange(socket, -1));
  state = State::kRefused;
  error = reason;
}

Status Listener::ConnectAgain(int kind, int peer, int error) {
  Connection& connection = connections_[kind][peer];
  connection.Refused(error);
  return connection.attempts < kAttempts ? StartConnecting(kind, peer)
                                         : OkStatus();
}

bool Listener::SharesMemory(int kind, int peer) const {
  return kind == kData && GetHost(addresses_[peer].socket) == GetHost(own_);
}

std::optional<PeerMemory> Listener::FindMemory(
    int peer, const Handshake& handshake) const {
  const PeerMemory memory(handshake.mark, addresses_[peer].nonce);
  if (!reads_memory_ || !memory.IsReadable()) return std::nullopt;
  return memory;
}

Status Listener::Greet(int kind, int peer) {
  Connection& connection = connections_[kind][peer];
  switch (connection.state) {
    case State::kGreeted:
      return TakeAnswer(kind, peer);
    case State::kAnswered:
      TakeVerdict(connection);
      return OkStatus();
    case State::kSettled:
      // No rank leaves in peace before all are connected, so the peer is gone.
      connection.state = State::kGone;
      return OkStatus();
    default:
      break;
  }
  SetForMessages(connection.socket);
  const Handshake handshake = {.magic = kHelloMagic + kind,
                               .rank = rank_,
                               .nonce = addresses_[peer].nonce,
                               .mark = mark_.place()};
  // Fits into the empty socket buffer. Fails if connect failed.
  if (send(connection.socket, &handshake, sizeof(handshake), MSG_NOSIGNAL) ==
      sizeof(handshake)) {
    connection.state = State::kGreeted;
  } else if (errno == EPIPE || errno == ECONNRESET) {
    return ConnectAgain(kind, peer, errno);
  } else {
    connection.Refused(errno);
  }
  return OkStatus();
}

Status Listener::TakeAnswer(int kind, int peer) {
  Connection& connection = connections_[kind][peer];
  Handshake answer;
  const ssize_t received =
      recv(connection.socket, &answer, sizeof(answer), MSG_DONTWAIT);
  if (received < 0 && IsTemporary(errno)) return OkStatus();
  if (received <= 0) return ConnectAgain(kind, peer, 0);
  if (received != sizeof(answer) || answer.magic != kHelloMagic + kind ||
      answer.rank != peer || answer.nonce != nonce_) {
    connection.Refused(0);
    return OkStatus();
  }
  connection.state = State::kSettled;
  if (!SharesMemory(kind, peer)) return OkStatus();
  // The answer has a mark if the peer can read this rank's memory.
  connection.memory = FindMemory(peer, answer);
  const char verdict = connection.memory.has_value() ? 1 : 0;
  (void)send(connection.socket, &verdict, sizeof(verdict), MSG_NOSIGNAL);
  return OkStatus();
}

void Listener::TakeVerdict(Connection& connection) {
  char verdict = 0;
  const ssize_t received =
      recv(connection.socket, &verdict, sizeof(verdict), MSG_DONTWAIT);
  if (received < 0 && IsTemporary(errno)) return;
  // If the peer has gone, the first use of the socket fails.
  if (received != sizeof(verdict) || verdict == 0) connection.memory.reset();
  connection.state = State::kSettled;
}

bool Listener::TakeHandshake(int socket) {
  Handshake handshake;
  const ssize_t received =
      recv(socket, &handshake, sizeof(handshake), MSG_DONTWAIT);
  if (received < 0 && IsTemporary(errno)) return false;
  // Any other magic gives an invalid kind.
  const uint32_t kind = handshake.magic - kHelloMagic;
  const bool is_peer =
      received == sizeof(handshake) && kind < kConnectionKinds &&
      handshake.nonce == nonce_ && handshake.rank > rank_ &&
      handshake.rank < world_size_ &&
      connections_[kind][handshake.rank].state == State::kAwaited;
  if (!is_peer) {
    Refuse(socket);
    return true;
  }
  SetForMessages(socket);
  Connection& connection = connections_[kind][handshake.rank];
  connection = {.socket = socket, .state = State::kSettled};
  if (SharesMemory(static_cast<int>(kind), handshake.rank)) {
    connection.state = State::kAnswered;
    connection.memory = FindMemory(handshake.rank, handshake);
  }
  const Handshake answer = {
      .magic = handshake.magic,
      .rank = rank_,
      .nonce = addresses_[handshake.rank].nonce,
      .mark = connection.memory.has_value() ? mark_.place() : MarkPlace()};
  // Fits into the empty socket buffer. If it fails, so does the first use of
  // the socket.
  (void)send(socket, &answer, sizeof(answer), MSG_NOSIGNAL);
  return true;
}

std::vector<int> Listener::MissingRanks() const {
  std::vector<int> missing;
  for (int peer = 0; peer < world_size_; ++peer) {
    bool settled = true;
    for (const auto& connections : connections_) {
      settled &= connections[peer].state == State::kSettled;
    }
    if (!settled) missing.push_back(peer);
  }
  return missing;
}

Status Listener::CheckMissing(const std::vector<int>& missing,
                              Instant deadline) const {
  Status status;
  for (const int peer : missing) {
    for (const auto& connections : connections_) {
      const Connection& connection = connections[peer];
      const bool has_gone = connection.state == State::kGone;
      if (connection.state != State::kRefused && !has_gone) continue;
      status = UnavailableError(
          has_gone
              ? absl::StrCat("rank ", peer, " has gone while the group formed")
          : connection.error != 0
              ? absl::StrCat("cannot connect to rank ", peer, ": ",
                             std::strerror(connection.error))
              : absl::StrCat("rank ", peer,
                             " refuses a connection from this rank (", rank_,
                             "): is its process one of another run?"));
      SetCulpritRank(status, peer);
      return status;
    }
  }
  if (missing.empty() || Clock::now() < deadline) return status;
  status = DeadlineExceededError(absl::StrCat(
      base::RanksText(missing), " did not connect to this rank (", rank_,
      ") in time; ", world_size_ - 1 - static_cast<int>(missing.size()), " of ",
      world_size_ - 1, " peers did"));
  SetCulpritRanks(status, missing);
  return status;
}

Status Listener::AwaitGreetings(Instant deadline,
                                UnprovedConnections& unproved) {
  std::vector<pollfd> waits;
  std::vector<std::pair<int, int>> greeted;
  for (int kind = 0; kind < kConnectionKinds; ++kind) {
    for (int peer = 0; peer < world_size_; ++peer) {
      const Connection& connection = connections_[kind][peer];
      const State state = connection.state;
      // A settled control connection is read for the peer's goodbye.
      const bool is_farewell = kind == kControl && connection.socket >= 0;
      if (state != State::kConnecting && state != State::kGreeted &&
          state != State::kAnswered &&
          !(state == State::kSettled && is_farewell)) {
        continue;
      }
      const int events = state == State::kConnecting ? POLLOUT : POLLIN;
      waits.push_back(
          {connection.socket, static_cast<short>(events), 0});  // NOLINT
      greeted.emplace_back(kind, peer);
    }
  }
  unproved.AddTo(waits);
  waits.push_back({woken_, POLLIN, 0});
  waits.push_back({listening_socket_, POLLIN, 0});
  const int ready = poll(waits.data(), waits.size(),
                         PollTimeout(std::min(deadline, unproved.deadline())));
  if (ready < 0 && errno != EINTR) {
    return ResourceExhaustedError(absl::StrCat(
        "rank ", rank_, " cannot wait for its peers: ", std::strerror(errno)));
  }
  if (ready < 0) return OkStatus();
  if (waits[waits.size() - 2].revents != 0) {
    return CancelledError("woken");
  }
  Status status;
  for (size_t i = 0; i < greeted.size(); ++i) {
    if (waits[i].revents == 0) continue;
    status.Update(Greet(greeted[i].first, greeted[i].second));
  }
  const auto prove = [&](int socket) { return TakeHandshake(socket); };
  unproved.ProveAll(prove);
  if (waits.back().revents == 0) return status;
  const Status accepted = unproved.Accept(listening_socket_, prove);
  if (!accepted.ok()) {
    status.Update(Status(accepted.code(), absl::StrCat("rank ", rank_, " ",
                                                       accepted.message())));
  }
  return status;
}

// The lower rank of two listens. Connections are made, greeted and answered in
// whatever order they get ready, so no order of ranks can block.
Status Listener::ConnectSockets(Instant deadline) {
  Status status;
  for (int peer = 0; peer < rank_ && status.ok(); ++peer) {
    for (int kind = 0; kind < kConnectionKinds && status.ok(); ++kind) {
      status = StartConnecting(kind, peer);
    }
  }
  // All higher ranks may connect before the first handshake comes.
  UnprovedConnections unproved(kConnectionKinds *
                               static_cast<size_t>(world_size_ - 1 - rank_));
  std::vector<int> missing = MissingRanks();
  if (status.ok()) status = CheckMissing(missing, Instant::max());
  while (status.ok() && !missing.empty()) {
    status = AwaitGreetings(deadline, unproved);
    missing = MissingRanks();
    if (status.ok()) status = CheckMissing(missing, deadline);
  }
  return status;
}

StatusOr<Listener::Sockets> Listener::Connect(
    const std::vector<RankAddress>& addresses, Instant deadline) {
  addresses_ = addresses;
  Status status = ConnectSockets(deadline);
  if (!status.ok()) return status;
  Sockets sockets;
  for (Connection& connection : connections_[kData]) {
    sockets.data.push_back(std::exchange(connection.socket, -1));
    sockets.memories.push_back(connection.memory);
  }
  sockets.control = TakeControlConnections();
  return sockets;
}

std::vector<int> Listener::TakeControlConnections() {
  std::vector<int> sockets;
  for (Connection& connection : connections_[kControl]) {
    // If this rank has sent its handshake, the peer knows the connection or
    // will.
    const bool has_said_who = connection.state == State::kGreeted ||
                              connection.state == State::kSettled ||
                              connection.state == State::kGone;
    sockets.push_back(has_said_who ? std::exchange(connection.socket, -1) : -1);
  }
  return sockets;
}

void Listener::Serve(Take take) {
  take_ = std::move(take);
  awaits_offer_.emplace([this] { return StartServer(); }, listening_socket_);
}

Instant Listener::StartServer() {
  if (server_.joinable()) return Instant::max();
  try {
    server_ = std::thread([this] { RunServer(); });
  } catch (const std::system_error&) {
    // Clients wait until a thread is available.
    return Clock::now() + kNoDescriptors;
  }
  return Instant::max();
}

bool Listener::TakeOffer(int socket) const {
  OfferMessage offer;
  const ssize_t received = recv(socket, &offer, sizeof(offer), MSG_DONTWAIT);
  if (received < 0 && IsTemporary(errno)) return false;
  const int peer = offer.rank;
  if (received != sizeof(offer) || !offer.IsFor(nonce_) || peer < 0 ||
      peer >= world_size_ || peer == rank_) {
    Refuse(socket);
    return true;
  }
  bool is_taken = false;
  take_(peer, socket, [&](Reply reply) {
    is_taken = reply == Reply::kTaken;
    const OfferMessage answer = {
        .rank = rank_, .nonce = addresses_[peer].nonce, .reply = reply};
    // Fits into the empty socket buffer. If it fails, so does the first use of
    // the socket.
    (void)send(socket, &answer, sizeof(answer), MSG_NOSIGNAL);
  });
  if (!is_taken) ::close(socket);
  return true;
}

void Listener::RunServer() {
  UnprovedConnections unproved;
  const auto prove = [&](int socket) { return TakeOffer(socket); };
  while (true) {
    std::vector<pollfd> waits = {{woken_, POLLIN, 0},
                                 {listening_socket_, POLLIN, 0}};
    unproved.AddTo(waits);
    const Instant until = unproved.deadline();
    const int timeout = until == Instant::max() ? -1 : PollTimeout(until);
    if (poll(waits.data(), waits.size(), timeout) < 0 && errno != EINTR) break;
    if (waits[0].revents != 0) break;
    unproved.ProveAll(prove);
    if (waits[1].revents != 0 &&
        !unproved.Accept(listening_socket_, prove).ok()) {
      // Clients wait until descriptors are available.
      (void)poll(waits.data(), 1, static_cast<int>(kNoDescriptors.count()));
    }
  }
  ::close(std::exchange(listening_socket_, -1));
}

Status Listener::CannotOffer(int peer, int error) const {
  Status status =
      Failed(absl::StrCat("cannot open a connection to rank ", peer), error);
  if (IsUnavailable(status)) SetCulpritRank(status, peer);
  return status;
}

StatusOr<int> Listener::StartOffer(int peer) const {
  const AddressBytes& address = addresses_[peer].socket;
  const int socket = MakeSocket(address);
  if (socket < 0) return CannotOffer(peer, errno);
  if (connect(socket, Generic(address), AddressSize(address)) == 0 ||
      errno == EINPROGRESS) {
    return socket;
  }
  const int error = errno;
  ::close(socket);
  return CannotOffer(peer, error);
}

Status Listener::SendOffer(int peer, int socket) const {
  const OfferMessage offer = {.rank = rank_, .nonce = addresses_[peer].nonce};
  // Fits into the empty socket buffer. Fails if connect failed.
  if (send(socket, &offer, sizeof(offer), MSG_NOSIGNAL) == sizeof(offer)) {
    return OkStatus();
  }
  const bool was_closed = errno == EPIPE || errno == ECONNRESET;
  return was_closed ? Dropped(peer) : CannotOffer(peer, errno);
}

StatusOr<Listener::Reply> Listener::ReadReply(int peer, int socket) const {
  OfferMessage answer;
  const ssize_t received = recv(socket, &answer, sizeof(answer), MSG_DONTWAIT);
  if (received <= 0) return Dropped(peer);
  if (received != sizeof(answer) || answer.rank != peer ||
      !answer.IsFor(nonce_)) {
    return CannotOffer(peer, EPROTO);
  }
  if (answer.reply == Reply::kTaken || answer.reply == Reply::kNotNeeded) {
    return answer.reply;
  }
  return CannotOffer(peer, ECONNREFUSED);
}

void Listener::Wake() {
  if (woken_ >= 0) eventfd_write(woken_, 1);
}

void Listener::Stop() {
  mark_.Clear();
  awaits_offer_.reset();
  Wake();
  if (server_.joinable()) server_.join();
  if (listening_socket_ >= 0) ::close(std::exchange(listening_socket_, -1));
}

}  // namespace muster::dataplane::cpu
