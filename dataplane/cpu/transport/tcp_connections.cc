#include "dataplane/cpu/transport/tcp_connections.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/socket.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// The bytes that one connection, or one peer's memory, moves before the next
// connection's turn.
constexpr size_t kTurnBytes = 256 << 10;
constexpr size_t kTakenTurnBytes = 1 << 20;

// From this size on, an offer and its answer are faster than sending the data.
constexpr size_t kOfferBytesMin = 128 << 10;

// The bytes read at once at the start of a message: enough for a whole small
// message.
constexpr size_t kAheadBytes = 4 << 10;

}  // namespace

TcpConnections::TcpConnections(int rank, int world_size)
    : rank_(rank),
      woken_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      woken_error_(woken_ < 0 ? errno : 0),
      connections_(world_size) {}

TcpConnections::~TcpConnections() {
  Close();
  if (woken_ >= 0) ::close(woken_);
}

Status TcpConnections::Take(const std::vector<int>& sockets,
                            const Memories& memories) {
  for (size_t peer = 0; peer < connections_.size(); ++peer) {
    connections_[peer].socket = sockets[peer];
    connections_[peer].memory = memories[peer];
  }
  if (woken_ >= 0) return OkStatus();
  return Failed("cannot wait for peers", woken_error_);
}

uint64_t TcpConnections::Connection::sent() const {
  return offers.empty() ? written : std::min(written, offers.front() - 1);
}

bool TcpConnections::Connection::is_active() const {
  return !sends.empty() || !receives.empty() || !offers.empty() ||
         note.bytes > 0;
}

bool TcpConnections::Connection::wants_input() const {
  if (!current.has_value()) {
    return !receives.empty() || !offers.empty() || note.bytes > 0;
  }
  return current->kind == Kind::kNote ? note.bytes > 0 : !receives.empty();
}

void TcpConnections::Activate(int peer) {
  if (std::find(active_.begin(), active_.end(), peer) == active_.end()) {
    active_.push_back(peer);
  }
}

bool TcpConnections::IsOffered(const Connection& connection, size_t bytes) {
  return connection.memory.has_value() && bytes >= kOfferBytesMin;
}

uint64_t TcpConnections::PostSend(int peer, const void* data, size_t bytes) {
  Connection& connection = connections_[peer];
  const auto* const begin = static_cast<const std::byte*>(data);
  const uint64_t number = ++connection.posted;
  if (IsOffered(connection, bytes) && CanBeRead(data, bytes)) {
    connection.sends.push_back(
        {.head = {.kind = Kind::kOffer,
                  .bytes = bytes,
                  .address = reinterpret_cast<uint64_t>(begin)}});
    connection.offers.push_back(number);
  } else {
    connection.sends.push_back({.head = {.kind = Kind::kData, .bytes = bytes},
                                .data = begin,
                                .bytes = bytes});
  }
  Activate(peer);
  return number;
}

uint64_t TcpConnections::PostReceive(int peer, void* data, size_t bytes) {
  Connection& connection = connections_[peer];
  connection.receives.push_back({static_cast<std::byte*>(data), bytes});
  Activate(peer);
  return connection.received + connection.receives.size();
}

TcpConnections::Progress TcpConnections::ToProgress(ssize_t moved,
                                                    const void* data,
                                                    size_t bytes) {
  if (moved > 0) return Progress::kMoved;
  if (moved < 0 && IsTemporary(errno)) return Progress::kNothing;
  if (moved < 0 && errno == EFAULT) {
    bad_memory_ = BadOwnMemory(rank_, data, bytes);
  }
  return Progress::kBroken;
}

TcpConnections::Progress TcpConnections::Send(Connection& connection) {
  bool moved = false;
  while (!connection.sends.empty()) {
    Outgoing& message = connection.sends.front();
    if (message.head_bytes + message.bytes > 0) {
      auto* const head_end = reinterpret_cast<std::byte*>(&message.head + 1);
      // sendmsg only reads the data.
      iovec parts[] = {{head_end - message.head_bytes, message.head_bytes},
                       {const_cast<std::byte*>(message.data),
                        std::min(message.bytes, kTurnBytes)}};
      msghdr header = {};
      header.msg_iov = parts;
      header.msg_iovlen = 2;
      const ssize_t sent =
          sendmsg(connection.socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
      const Progress progress =
          ToProgress(sent, message.data, parts[1].iov_len);
      if (progress == Progress::kBroken) return progress;
      if (progress == Progress::kNothing) break;
      moved = true;
      const size_t sent_of_head = std::min<size_t>(sent, message.head_bytes);
      message.head_bytes -= sent_of_head;
      message.data += sent - sent_of_head;
      message.bytes -= sent - sent_of_head;
      // Let the other connections have their turn.
      if (message.head_bytes + message.bytes > 0) break;
    }
    switch (message.end) {
      case Outgoing::kPart:
        break;
      case Outgoing::kWhole:
        ++connection.written;
        break;
      case Outgoing::kAnswer:
        --connection.answers;
        break;
    }
    connection.sends.pop_front();
  }
  return moved ? Progress::kMoved : Progress::kNothing;
}

void TcpConnections::AnswerOffers(Connection& connection) {
  // Insert the answer before all messages that are not begun: the peer may read
  // those only after the answer.
  auto place = connection.sends.begin();
  while (place != connection.sends.end() &&
         (place->head_bytes < sizeof(Head) || place->end == Outgoing::kPart)) {
    ++place;
  }
  connection.sends.insert(
      place, {.head = {.kind = Kind::kTaken,
                       .count = std::exchange(connection.taken, 0)},
              .end = Outgoing::kAnswer});
  ++connection.answers;
}

TcpConnections::Progress TcpConnections::TakeOffered(Connection& connection,
                                                     size_t& turn) {
  Head& offer = connection.offered.front();
  Incoming& part = connection.receives.front();
  const size_t bytes = std::min(part.bytes, kTakenTurnBytes);
  if (offer.bytes != part.bytes || !connection.memory.has_value()) {
    return Progress::kBroken;
  }
  if (!connection.memory->Read(offer.address, part.data, bytes)) {
    const auto peer = static_cast<int>(&connection - connections_.data());
    bad_memory_ = connection.memory->WhyUnread(rank_, peer, offer.address,
                                               part.data, bytes);
    return Progress::kBroken;
  }
  turn = 0;
  offer.address += bytes;
  offer.bytes -= bytes;
  part.data += bytes;
  part.bytes -= bytes;
  if (part.bytes > 0) return Progress::kMoved;
  connection.offered.pop_front();
  connection.receives.pop_front();
  ++connection.received;
  ++connection.taken;
  return Progress::kMoved;
}

TcpConnections::Progress TcpConnections::Interpret(Connection& connection,
                                                   const Head& head) {
  switch (head.kind) {
    case Kind::kNote:
    case Kind::kData:
      connection.current = head;
      return Progress::kMoved;
    case Kind::kOffer:
      connection.offered.push_back(head);
      return Progress::kMoved;
    case Kind::kTaken:
      if (head.count > connection.offers.size()) break;
      connection.offers.erase(connection.offers.begin(),
                              connection.offers.begin() + head.count);
      return Progress::kMoved;
  }
  return Progress::kBroken;  // A rank never sends this.
}

TcpConnections::Progress TcpConnections::ReceiveHead(Connection& connection,
                                                     size_t& turn) {
  const size_t there = connection.ahead_end - connection.ahead_begin;
  if (there >= sizeof(Head)) {
    Head head;
    std::memcpy(&head, connection.ahead.data() + connection.ahead_begin,
                sizeof(head));
    connection.ahead_begin += sizeof(head);
    return Interpret(connection, head);
  }
  if (!connection.wants_input()) return Progress::kNothing;
  if (there == 0 && connection.note.bytes == 0 &&
      !connection.receives.empty() &&
      !IsOffered(connection, connection.receives.front().bytes)) {
    return ReceiveData(connection, turn);
  }
  if (connection.ahead.size() < kAheadBytes)
    connection.ahead.resize(kAheadBytes);
  std::memmove(connection.ahead.data(),
               connection.ahead.data() + connection.ahead_begin, there);
  connection.ahead_begin = 0;
  connection.ahead_end = there;
  const ssize_t received =
      recv(connection.socket, connection.ahead.data() + there,
           connection.ahead.size() - there, MSG_DONTWAIT);
  const Progress progress =
      ToProgress(received, connection.ahead.data(), connection.ahead.size());
  if (progress != Progress::kMoved) return progress;
  connection.ahead_end += received;
  return Progress::kMoved;
}

TcpConnections::Progress TcpConnections::ReceiveData(Connection& connection,
                                                     size_t& turn) {
  Head head;
  Incoming& part = connection.receives.front();
  iovec parts[] = {{&head, sizeof(head)},
                   {part.data, std::min(part.bytes, turn)}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t received = recvmsg(connection.socket, &message, MSG_DONTWAIT);
  const Progress progress = ToProgress(received, part.data, parts[1].iov_len);
  if (progress != Progress::kMoved) return progress;
  const size_t of_head = std::min<size_t>(received, sizeof(head));
  const size_t of_part = received - of_head;
  if (of_head < sizeof(head) || head.kind != Kind::kData ||
      head.bytes != part.bytes) {
    // Another message comes first.
    connection.ahead.resize(std::max<size_t>(kAheadBytes, received));
    std::memcpy(connection.ahead.data(), &head, of_head);
    std::memcpy(connection.ahead.data() + of_head, part.data, of_part);
    connection.ahead_begin = 0;
    connection.ahead_end = received;
    return Progress::kMoved;
  }
  if (of_part < parts[1].iov_len) turn = 0;
  part.data += of_part;
  part.bytes -= of_part;
  connection.current = head;
  connection.current->bytes = part.bytes;
  FinishData(connection);
  return Progress::kMoved;
}

void TcpConnections::FinishData(Connection& connection) {
  if (connection.current->bytes > 0) return;
  connection.current.reset();
  connection.receives.pop_front();
  ++connection.received;
}

TcpConnections::Progress TcpConnections::ReceiveInto(Connection& connection,
                                                     Incoming& part,
                                                     size_t& turn) {
  const size_t bytes =
      std::min<uint64_t>(part.bytes, connection.current->bytes);
  size_t moved = std::min(bytes, connection.ahead_end - connection.ahead_begin);
  if (moved > 0) {
    std::memcpy(part.data, connection.ahead.data() + connection.ahead_begin,
                moved);
    connection.ahead_begin += moved;
  } else if (bytes > 0) {
    const ssize_t received =
        recv(connection.socket, part.data, std::min(bytes, turn), MSG_DONTWAIT);
    const Progress progress =
        ToProgress(received, part.data, std::min(bytes, turn));
    if (progress != Progress::kMoved) return progress;
    moved = received;
    if (moved < bytes) turn = 0;
  }
  part.data += moved;
  part.bytes -= moved;
  connection.current->bytes -= moved;
  return Progress::kMoved;
}

TcpConnections::Progress TcpConnections::ReceiveCurrent(Connection& connection,
                                                        size_t& turn) {
  if (connection.current->kind == Kind::kNote) {
    if (connection.note.bytes > 0) {
      const Progress progress = ReceiveInto(connection, connection.note, turn);
      if (connection.current->bytes == 0) connection.current.reset();
      return progress;
    }
    // A thread that waits for posted receives has already read the peer's
    // notes.
    return connection.receives.empty() ? Progress::kNothing : Progress::kBroken;
  }
  if (connection.receives.empty()) {
    return connection.note.bytes > 0 ? Progress::kBroken : Progress::kNothing;
  }
  Incoming& part = connection.receives.front();
  if (part.bytes != connection.current->bytes) return Progress::kBroken;
  const Progress progress = ReceiveInto(connection, part, turn);
  FinishData(connection);
  return progress;
}

TcpConnections::Progress TcpConnections::ReceiveStep(Connection& connection,
                                                     size_t& turn) {
  if (!connection.offered.empty() && !connection.receives.empty()) {
    return TakeOffered(connection, turn);
  }
  return connection.current.has_value() ? ReceiveCurrent(connection, turn)
                                        : ReceiveHead(connection, turn);
}

TcpConnections::Progress TcpConnections::Receive(Connection& connection) {
  bool moved = false;
  size_t turn = kTurnBytes;
  while (turn > 0) {
    const Progress progress = ReceiveStep(connection, turn);
    if (progress == Progress::kBroken) return progress;
    if (progress == Progress::kNothing) break;
    moved = true;
  }
  if (connection.taken > 0) AnswerOffers(connection);
  return moved ? Progress::kMoved : Progress::kNothing;
}

TcpConnections::Progress TcpConnections::MoveAll() {
  bool moved = false;
  for (const int peer : active_) {
    Connection& connection = connections_[peer];
    for (const Progress progress : {Receive(connection), Send(connection)}) {
      if (progress == Progress::kBroken) {
        broken_peer_ = peer;
        return progress;
      }
      moved |= progress == Progress::kMoved;
    }
  }
  std::erase_if(active_,
                [this](int peer) { return !connections_[peer].is_active(); });
  return moved ? Progress::kMoved : Progress::kNothing;
}

template <typename Done>
TcpConnections::IoResult TcpConnections::AwaitUntil(Done&& done) {
  std::vector<pollfd> waits;
  while (!done()) {
    switch (MoveAll()) {
      case Progress::kBroken:
        return IoResult::kBroken;
      case Progress::kMoved:
        continue;
      case Progress::kNothing:
        break;
    }
    if (done()) break;
    waits.assign({{woken_, POLLIN, 0}});
    for (const int active : active_) {
      const Connection& connection = connections_[active];
      const int events = (connection.sends.empty() ? 0 : POLLOUT) |
                         (connection.wants_input() ? POLLIN : 0);
      // Skip unread connections: the end of one would wake every poll.
      if (events == 0) continue;
      waits.push_back(
          {connection.socket, static_cast<short>(events), 0});  // NOLINT
    }
    while (poll(waits.data(), waits.size(), -1) < 0 && errno == EINTR) {
    }
    if (waits[0].revents != 0) return IoResult::kWoken;
  }
  return IoResult::kDone;
}

TcpConnections::IoResult TcpConnections::AwaitSend(int peer, uint64_t number) {
  const Connection& connection = connections_[peer];
  return AwaitUntil([&] { return connection.sent() >= number; });
}

TcpConnections::IoResult TcpConnections::AwaitReceive(int peer,
                                                      uint64_t number) {
  const Connection& connection = connections_[peer];
  // Also send the answers, because no later wait may send them.
  return AwaitUntil(
      [&] { return connection.received >= number && connection.answers == 0; });
}

TcpConnections::IoResult TcpConnections::Write(int peer, const void* head,
                                               size_t head_bytes,
                                               const void* body,
                                               size_t body_bytes) {
  Connection& connection = connections_[peer];
  // Data written to a peer that has closed its end is lost without an error,
  // while this rank may still read the peer's earlier data. This rank would
  // then complete a collective that has failed.
  pollfd end = {connection.socket, POLLRDHUP, 0};
  if (connection.socket < 0 || poll(&end, 1, 0) > 0) {
    broken_peer_ = peer;
    return IoResult::kBroken;
  }
  const Head first = {.bytes = head_bytes + body_bytes};
  size_t sent = 0;
  if (connection.sends.empty()) {
    // Normally one call sends everything.
    iovec parts[] = {{const_cast<Head*>(&first), sizeof(first)},
                     {const_cast<void*>(head), head_bytes},
                     {const_cast<void*>(body), body_bytes}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 3;
    sent = std::max<ssize_t>(
        0, sendmsg(connection.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (sent == sizeof(first) + first.bytes) return IoResult::kDone;
  }
  const size_t sent_of_first = std::min(sent, sizeof(first));
  const size_t sent_of_head = std::min(sent - sent_of_first, head_bytes);
  const size_t sent_of_body = sent - sent_of_first - sent_of_head;
  connection.sends.push_back(
      {.head = first,
       .head_bytes = sizeof(first) - sent_of_first,
       .data = static_cast<const std::byte*>(head) + sent_of_head,
       .bytes = head_bytes - sent_of_head,
       .end = Outgoing::kPart});
  connection.sends.push_back(
      {.head_bytes = 0,
       .data = static_cast<const std::byte*>(body) + sent_of_body,
       .bytes = body_bytes - sent_of_body});
  Activate(peer);
  const uint64_t number = ++connection.posted;
  return AwaitUntil([&] { return connection.written >= number; });
}

TcpConnections::IoResult TcpConnections::Read(int peer, void* data,
                                              size_t bytes) {
  Connection& connection = connections_[peer];
  connection.note = {static_cast<std::byte*>(data), bytes};
  Activate(peer);
  return AwaitUntil([&] { return connection.note.bytes == 0; });
}

void TcpConnections::Wake() { eventfd_write(woken_, 1); }

void TcpConnections::Close() {
  for (Connection& connection : connections_) {
    if (connection.socket >= 0) ::close(connection.socket);
    connection = Connection();
  }
  active_.clear();
}

}  // namespace muster::dataplane::cpu
