#include "dataplane/cpu/transport/tcp_p2p_connections.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/exception_guard.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/socket.h"
#include "dataplane/culprit.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// The bytes that one connection moves before the next one's turn.
constexpr size_t kTurnBytes = 1 << 20;

// The period in milliseconds of checks for the reason why a peer has gone, and
// of checks of awaited peers.
constexpr int kEndingPeriod = 5;

// Marks the event of the eventfd.
constexpr uint32_t kWoken = UINT32_MAX;

[[noreturn]] void Throw(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Drops all bytes that have come. Returns true if the peer has closed the
// connection, or has everything that this rank sent. Unread bytes would reset
// the connection, and so would bytes that come after it is closed: then the
// peer would lose what this rank sent last.
bool HasArrived(int socket) {
  std::array<std::byte, 4096> rest;
  // The peer may never stop sending.
  for (int reads = 0; reads < 64; ++reads) {
    const ssize_t got = recv(socket, rest.data(), rest.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && !IsTemporary(errno))) return true;
    if (got < 0) break;
  }
  int unsent = 0;
  return ioctl(socket, SIOCOUTQ, &unsent) != 0 || unsent == 0;
}

}  // namespace

TcpP2pConnections::TcpP2pConnections(int rank, int world_size,
                                     const Listener& listener,
                                     FindGone find_gone,
                                     std::chrono::milliseconds offer_timeout)
    : rank_(rank),
      listener_(listener),
      find_gone_(std::move(find_gone)),
      offer_timeout_(offer_timeout),
      incoming_(world_size),
      connections_(world_size) {}

TcpP2pConnections::~TcpP2pConnections() {
  Close(Instant::min());
  MutexLock lock(mutex_);
  if (woken_ >= 0) ::close(woken_);
  if (poll_ >= 0) ::close(poll_);
}

void TcpP2pConnections::SetCallbacks(Callbacks callbacks) {
  MutexLock lock(mutex_);
  callbacks_ = std::move(callbacks);
}

void TcpP2pConnections::EnsureThread() {
  if (thread_.joinable()) return;
  if (woken_ < 0) woken_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (woken_ < 0) Throw("cannot make an eventfd for sends and receives");
  if (poll_ < 0) poll_ = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event = {.events = EPOLLIN, .data = {.u32 = kWoken}};
  if (poll_ < 0 || (epoll_ctl(poll_, EPOLL_CTL_ADD, woken_, &event) != 0 &&
                    errno != EEXIST)) {
    Throw("cannot wait for sends and receives");
  }
  thread_ = std::thread([this, poll = poll_] { RunProgressThread(poll); });
}

void TcpP2pConnections::Wake() {
  if (woken_ >= 0) eventfd_write(woken_, 1);
}

void TcpP2pConnections::Watch(int peer) {
  const Connection& connection = connections_[peer];
  epoll_event event = {.events = 0,
                       .data = {.u32 = static_cast<uint32_t>(peer)}};
  if (connection.phase != Phase::kConnecting) event.events |= EPOLLIN;
  if (connection.phase == Phase::kConnecting ||
      (connection.phase == Phase::kOpen && !connection.sends.empty())) {
    event.events |= EPOLLOUT;
  }
  if (epoll_ctl(poll_, EPOLL_CTL_MOD, connection.socket, &event) == 0) return;
  if (epoll_ctl(poll_, EPOLL_CTL_ADD, connection.socket, &event) != 0) {
    End(peer, Failed("cannot wait for sends and receives", errno));
  }
}

void TcpP2pConnections::Open(int peer) {
  MutexLock lock(mutex_);
  Connection& connection = connections_[peer];
  if (connection.phase != Phase::kNone || is_stopping_) return;
  EnsureThread();
  Connect(peer);
}

void TcpP2pConnections::Connect(int peer) {
  Connection& connection = connections_[peer];
  ++connection.attempts;
  const StatusOr<int> socket = listener_.StartOffer(peer);
  if (!socket.ok()) return End(peer, socket.status());
  connection.socket = *socket;
  connection.phase = Phase::kConnecting;
  Watch(peer);
}

void TcpP2pConnections::Offer(int peer) {
  Connection& connection = connections_[peer];
  Status status;
  if (connection.phase == Phase::kConnecting) {
    status = listener_.SendOffer(peer, connection.socket);
    if (status.ok()) {
      connection.phase = Phase::kOffered;
      return Watch(peer);
    }
  } else {
    const StatusOr<Listener::Reply> reply =
        listener_.ReadReply(peer, connection.socket);
    if (reply.ok() && *reply == Listener::Reply::kTaken) {
      SendAtOnce(connection.socket);
      connection.phase = Phase::kOpen;
      return Watch(peer);
    }
    status = reply.status();
  }
  ::close(std::exchange(connection.socket, -1));
  if (status.ok()) {
    connection.phase = Phase::kAwaited;
    awaited_.push_back({peer, Clock::now()});
  } else if (IsAborted(status) && connection.attempts < Listener::kAttempts) {
    // The peer has dropped the connection before it read the offer.
    Connect(peer);
  } else {
    End(peer, IsAborted(status) ? OkStatus() : status);
  }
}

void TcpP2pConnections::Take(
    int peer, int socket,
    const std::function<void(Listener::Reply reply)>& tell) {
  MutexLock lock(mutex_);
  Connection& connection = connections_[peer];
  const bool crosses = connection.phase == Phase::kConnecting ||
                       connection.phase == Phase::kOffered;
  const bool is_new = connection.phase == Phase::kNone ||
                      connection.phase == Phase::kAwaited || crosses;
  const bool can_take = is_new && !is_stopping_ &&
                        Guarded([&]() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                          EnsureThread();
                          return OkStatus();
                        }).ok();
  if (!can_take) return tell(Listener::Reply::kRefused);
  // If two offers cross, that of the lower rank is taken.
  if (crosses && rank_ < peer) return tell(Listener::Reply::kNotNeeded);
  if (connection.socket >= 0) ::close(connection.socket);
  SendAtOnce(socket);
  connection.socket = socket;
  connection.phase = Phase::kOpen;
  // Send the reply before anything else uses the connection.
  tell(Listener::Reply::kTaken);
  Watch(peer);
}

void TcpP2pConnections::End(int peer, const Status& failure) {
  Connection& connection = connections_[peer];
  if (connection.phase == Phase::kEnded) return;
  connection.phase = Phase::kEnded;
  connection.failure = failure;
  connection.sends.clear();
  ended_.push_back(peer);
  Wake();
}

bool TcpP2pConnections::Post(int peer, const Message& message,
                             const void* payload, size_t bytes,
                             uint64_t ticket) {
  MutexLock lock(mutex_);
  Connection& connection = connections_[peer];
  if (connection.phase == Phase::kEnded || connection.is_cut || is_stopping_) {
    return false;
  }
  const bool was_idle = connection.sends.empty();
  connection.sends.push_back({.head = {bytes, message},
                              .data = static_cast<const std::byte*>(payload),
                              .bytes = bytes,
                              .ticket = ticket});
  std::vector<uint64_t> left;
  // Normally one call sends everything.
  if (was_idle && connection.phase == Phase::kOpen) Send(peer, left);
  if (connection.sends.empty()) {
    return connection.phase == Phase::kOpen && !connection.is_cut;
  }
  Outgoing& rest = connection.sends.back();
  rest.copy.assign(rest.data, rest.data + rest.bytes);
  rest.data = rest.copy.data();
  if (was_idle && connection.phase == Phase::kOpen) Watch(peer);
  return false;
}

void TcpP2pConnections::PostTensor(int peer, const Message& message,
                                   const void* data, size_t bytes,
                                   uint64_t ticket) {
  MutexLock lock(mutex_);
  Connection& connection = connections_[peer];
  if (connection.phase == Phase::kEnded || connection.is_cut || is_stopping_) {
    return;
  }
  connection.sends.push_back({.head = {bytes, message},
                              .data = static_cast<const std::byte*>(data),
                              .bytes = bytes,
                              .ticket = ticket});
  if (connection.phase == Phase::kOpen && connection.sends.size() == 1) {
    Watch(peer);
  }
}

void TcpP2pConnections::Run(std::function<bool()> step) {
  MutexLock lock(mutex_);
  if (is_stopping_) return;
  EnsureThread();
  steps_.push_back(std::move(step));
  Wake();
}

void TcpP2pConnections::Abort() {
  MutexLock lock(mutex_);
  is_stopping_ = true;
  Wake();
}

void TcpP2pConnections::Join() {
  Abort();
  if (thread_.joinable()) thread_.join();
}

void TcpP2pConnections::Close(Instant deadline) {
  MutexLock lock(mutex_);
  std::vector<pollfd> left;
  for (Connection& connection : connections_) {
    if (connection.socket < 0) continue;
    // The peer closes its end when it has read everything.
    shutdown(connection.socket, SHUT_WR);
    left.push_back({std::exchange(connection.socket, -1), POLLIN, 0});
  }
  for (;;) {
    std::erase_if(left, [&](const pollfd& one) {
      if (!HasArrived(one.fd) && Clock::now() < deadline) return false;
      ::close(one.fd);
      return true;
    });
    if (left.empty()) return;
    // No event says that bytes have arrived.
    poll(left.data(), left.size(), /*timeout=*/1);
  }
}

void TcpP2pConnections::Send(int peer, std::vector<uint64_t>& left) {
  Connection& connection = connections_[peer];
  size_t turn = kTurnBytes;
  while (!connection.sends.empty() && turn > 0) {
    Outgoing& message = connection.sends.front();
    auto* const head_end = reinterpret_cast<std::byte*>(&message.head + 1);
    // sendmsg only reads the data.
    iovec parts[] = {
        {head_end - message.head_bytes, message.head_bytes},
        {const_cast<std::byte*>(message.data), std::min(message.bytes, turn)}};
    msghdr header = {};
    header.msg_iov = parts;
    header.msg_iovlen = 2;
    const ssize_t sent =
        sendmsg(connection.socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && IsTemporary(errno)) return;
    if (sent < 0 && errno == EFAULT) {
      return End(peer, BadOwnMemory(rank_, message.data, parts[1].iov_len));
    }
    if (sent < 0) {
      // Messages that the peer sent before it went are still read.
      connection.is_cut = true;
      connection.sends.clear();
      return;
    }
    const size_t sent_of_head = std::min<size_t>(sent, message.head_bytes);
    const size_t sent_of_data = sent - sent_of_head;
    message.head_bytes -= sent_of_head;
    message.data += sent_of_data;
    message.bytes -= sent_of_data;
    turn -= std::min(turn, sent_of_data);
    if (message.head_bytes + message.bytes > 0) continue;
    if (message.ticket != 0) left.push_back(message.ticket);
    connection.sends.pop_front();
  }
}

void TcpP2pConnections::RunProgressThread(int poll) {
  std::array<epoll_event, 64> events;
  for (;;) {
    const bool has_steps = RunSteps();
    const bool is_awaiting = CheckAwaited();
    const int period = TellEnded() || is_awaiting ? kEndingPeriod : -1;
    const int count =
        epoll_wait(poll, events.data(), static_cast<int>(events.size()),
                   has_steps ? 0 : period);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u32 != kWoken) {
        const int peer = static_cast<int>(events[i].data.u32);
        const Status advanced = Guarded([&] {
          Advance(peer);
          return OkStatus();
        });
        if (advanced.ok()) continue;
        MutexLock lock(mutex_);
        End(peer, advanced);
        continue;
      }
      MutexLock lock(mutex_);
      if (is_stopping_) return;
      eventfd_t value = 0;
      eventfd_read(woken_, &value);
    }
  }
}

bool TcpP2pConnections::RunSteps() {
  std::list<std::function<bool()>> steps;
  {
    MutexLock lock(mutex_);
    if (is_stopping_) return false;
    steps.swap(steps_);
  }
  std::erase_if(steps,
                [](const std::function<bool()>& step) { return step(); });
  MutexLock lock(mutex_);
  steps_.splice(steps_.begin(), steps);
  return !steps_.empty();
}

bool TcpP2pConnections::CheckAwaited() {
  std::erase_if(awaited_, [this](const Awaited& awaited) {
    const int peer = awaited.peer;
    // Called without the lock: see TcpTransport::Abort.
    const bool is_gone =
        find_gone_(peer, OkStatus(), /*since=*/Instant::max()).has_value();
    const bool is_late = Clock::now() - awaited.since >= offer_timeout_;
    MutexLock lock(mutex_);
    if (connections_[peer].phase != Phase::kAwaited) return true;
    if (is_gone) {
      End(peer, OkStatus());
    } else if (is_late) {
      Status late = DeadlineExceededError(absl::StrCat(
          "rank ", peer, " announced a connection for sends and receives and ",
          "did not make it within ",
          absl::FormatDuration(absl::FromChrono(offer_timeout_))));
      SetCulpritRank(late, peer);
      End(peer, late);
    }
    return is_gone || is_late;
  });
  return !awaited_.empty();
}

bool TcpP2pConnections::TellEnded() {
  {
    MutexLock lock(mutex_);
    for (const int peer : std::exchange(ended_, {})) {
      Connection& connection = connections_[peer];
      if (connection.socket >= 0) ::close(std::exchange(connection.socket, -1));
      endings_.push_back({peer, connection.failure, Clock::now()});
    }
  }
  std::erase_if(endings_, [this](const Ending& ending) {
    const Status& failure = ending.failure;
    const bool is_of_peer = failure.ok() || IsUnavailable(failure);
    const std::optional<Status> how =
        is_of_peer ? find_gone_(ending.peer, failure, ending.since) : failure;
    if (how.has_value()) callbacks_.ended(ending.peer, *how);
    return how.has_value();
  });
  return !endings_.empty();
}

void TcpP2pConnections::Advance(int peer) {
  int socket = -1;
  std::vector<uint64_t> left;
  {
    MutexLock lock(mutex_);
    const Connection& connection = connections_[peer];
    if (is_stopping_) return;
    if (connection.phase == Phase::kConnecting ||
        connection.phase == Phase::kOffered) {
      return Offer(peer);
    }
    if (connection.phase != Phase::kOpen) return;
    if (!connection.sends.empty()) {
      Send(peer, left);
      if (connection.phase == Phase::kOpen && connection.sends.empty()) {
        Watch(peer);
      }
    }
    socket = connection.socket;
  }
  for (const uint64_t ticket : left) callbacks_.sent(peer, ticket);
  // Only this thread closes the socket of an open connection.
  if (Receive(peer, socket) != Progress::kEnded) return;
  MutexLock lock(mutex_);
  End(peer, OkStatus());
}

TcpP2pConnections::Progress TcpP2pConnections::Receive(int peer, int socket) {
  Incoming& incoming = incoming_[peer];
  constexpr size_t kInboxBytes = sizeof(Head) + kMessagePayloadBytesMax;
  incoming.inbox.resize(kInboxBytes);
  size_t turn = kTurnBytes;
  while (turn > 0) {
    void* const to = incoming.tensor != nullptr
                         ? static_cast<void*>(incoming.tensor)
                         : incoming.inbox.data() + incoming.end;
    const size_t bytes = incoming.tensor != nullptr
                             ? std::min(incoming.tensor_bytes, turn)
                             : kInboxBytes - incoming.end;
    const ssize_t received = recv(socket, to, bytes, MSG_DONTWAIT);
    if (received < 0 && IsTemporary(errno)) return Progress::kNothing;
    if (received < 0 && errno == EFAULT) {
      MutexLock lock(mutex_);
      End(peer, BadOwnMemory(rank_, to, bytes));
      return Progress::kNothing;
    }
    if (received <= 0) return Progress::kEnded;
    turn -= std::min<size_t>(turn, received);
    if (incoming.tensor != nullptr) {
      incoming.tensor += received;
      incoming.tensor_bytes -= received;
      FinishTensor(peer);
    } else {
      incoming.end += received;
      if (Interpret(peer) == Progress::kEnded) return Progress::kEnded;
    }
    // Then nothing more has come.
    if (static_cast<size_t>(received) < bytes) return Progress::kMoved;
  }
  return Progress::kMoved;
}

void TcpP2pConnections::FinishTensor(int peer) {
  Incoming& incoming = incoming_[peer];
  if (incoming.tensor_bytes > 0) return;
  incoming.tensor = nullptr;
  callbacks_.received(peer, incoming.message, {});
}

std::optional<size_t> TcpP2pConnections::BeginTensor(
    int peer, const Head& head, std::span<const std::byte> here) {
  Incoming& incoming = incoming_[peer];
  auto* const tensor = static_cast<std::byte*>(
      callbacks_.find_memory(peer, head.message, head.payload_bytes));
  if (tensor == nullptr) return std::nullopt;
  const size_t bytes = std::min<size_t>(here.size(), head.payload_bytes);
  if (!CopyIfValid(tensor, here.data(), bytes)) {
    MutexLock lock(mutex_);
    End(peer, BadOwnMemory(rank_, tensor, head.payload_bytes));
    return std::nullopt;
  }
  incoming.message = head.message;
  incoming.tensor = tensor + bytes;
  incoming.tensor_bytes = head.payload_bytes - bytes;
  FinishTensor(peer);
  return bytes;
}

TcpP2pConnections::Progress TcpP2pConnections::Interpret(int peer) {
  Incoming& incoming = incoming_[peer];
  const std::byte* next = incoming.inbox.data();
  const std::byte* const end = next + incoming.end;
  const auto bytes_left = [&] { return static_cast<size_t>(end - next); };
  while (incoming.tensor == nullptr && bytes_left() >= sizeof(Head)) {
    Head head;
    std::memcpy(&head, next, sizeof(head));
    const std::byte* const payload = next + sizeof(head);
    if (head.message.type == Message::kTensor) {
      const std::optional<size_t> taken =
          BeginTensor(peer, head, {payload, end});
      if (!taken.has_value()) return Progress::kEnded;
      next = payload + *taken;
      continue;
    }
    if (head.payload_bytes > kMessagePayloadBytesMax) return Progress::kEnded;
    if (bytes_left() < sizeof(head) + head.payload_bytes) break;
    next = payload + head.payload_bytes;
    callbacks_.received(peer, head.message, {payload, next});
  }
  const size_t rest = bytes_left();
  std::memmove(incoming.inbox.data(), next, rest);
  incoming.end = rest;
  return Progress::kMoved;
}

}  // namespace muster::dataplane::cpu
