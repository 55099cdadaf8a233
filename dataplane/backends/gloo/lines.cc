#include "dataplane/backends/gloo/lines.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::gloo_internal {
namespace {

// What two ranks may write to each other at once without reading: both sides'
// buffers hold the messages of a collective, so that nobody has to read while
// he writes.
constexpr int kBufferBytes = 256 << 10;

// What one connection moves before it is another one's turn.
constexpr size_t kTurnBytes = 256 << 10;

constexpr std::chrono::milliseconds kLookPeriod{100};

// The first bytes from whoever connects.
struct Hello {
  uint32_t magic = 0x6d757374;
  int32_t rank = 0;
};

socklen_t AddressSize(const AddressBytes& address) {
  sa_family_t family = 0;
  std::memcpy(&family, address.data(), sizeof(family));
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

const sockaddr* Generic(const AddressBytes& address) {
  return reinterpret_cast<const sockaddr*>(address.data());
}

int MakeSocket(const AddressBytes& address) {
  const int socket = ::socket(Generic(address)->sa_family,
                              SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kBufferBytes,
             sizeof(kBufferBytes));
  setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kBufferBytes,
             sizeof(kBufferBytes));
  return socket;
}

void SendAtOnce(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool IsTemporary(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

Lines::Lines(int rank, int world_size)
    : rank_(rank),
      woken_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      lines_(world_size) {
  lines_[rank].settled = true;
}

Lines::~Lines() {
  Close();
  ::close(woken_);
}

absl::StatusOr<AddressBytes> Lines::Listen(AddressBytes address) {
  auto* const generic = reinterpret_cast<sockaddr*>(address.data());
  // The port has one place in both families.
  std::memset(address.data() + offsetof(sockaddr_in, sin_port), 0,
              sizeof(in_port_t));
  listener_ = MakeSocket(address);
  socklen_t size = AddressSize(address);
  if (listener_ < 0 || bind(listener_, generic, size) != 0 ||
      listen(listener_, static_cast<int>(lines_.size())) != 0 ||
      getsockname(listener_, generic, &size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for ", lines_.size() - 1,
                     " peers: ", std::strerror(errno)));
  }
  return address;
}

void Lines::StartConnecting(int peer, const AddressBytes& address) {
  lines_[peer].socket = MakeSocket(address);
  if (connect(lines_[peer].socket, Generic(address), AddressSize(address)) ==
      0) {
    FinishConnecting(peer);
  } else if (errno != EINPROGRESS) {
    // It listened a moment ago: it has gone.
    ::close(std::exchange(lines_[peer].socket, -1));
    lines_[peer].settled = true;
  }
}

void Lines::FinishConnecting(int peer) {
  lines_[peer].settled = true;
  SendAtOnce(lines_[peer].socket);
  const Hello hello = {.rank = rank_};
  // Into an empty buffer. Fails if it could not connect.
  if (send(lines_[peer].socket, &hello, sizeof(hello), MSG_NOSIGNAL) !=
      sizeof(hello)) {
    ::close(std::exchange(lines_[peer].socket, -1));
  }
}

bool Lines::TakeHello(int socket) {
  Hello hello;
  const ssize_t received = recv(socket, &hello, sizeof(hello), MSG_DONTWAIT);
  if (received < 0 && IsTemporary(errno)) return false;
  const bool is_peer = received == sizeof(hello) &&
                       hello.magic == Hello().magic && hello.rank > rank_ &&
                       hello.rank < static_cast<int>(lines_.size()) &&
                       !lines_[hello.rank].settled;
  if (!is_peer) {
    ::close(socket);
    return true;
  }
  SendAtOnce(socket);
  lines_[hello.rank].socket = socket;
  lines_[hello.rank].settled = true;
  return true;
}

std::vector<int> Lines::MissingRanks() const {
  std::vector<int> missing;
  for (size_t peer = 0; peer < lines_.size(); ++peer) {
    if (!lines_[peer].settled) missing.push_back(static_cast<int>(peer));
  }
  return missing;
}

// The lower rank of two listens. Connecting needs nothing of the peer but its
// socket, so no order of ranks can block.
absl::Status Lines::Connect(const std::vector<AddressBytes>& addresses,
                            Instant deadline,
                            const std::function<bool(int peer)>& is_gone) {
  for (int peer = 0; peer < rank_; ++peer) {
    StartConnecting(peer, addresses[peer]);
  }
  std::vector<int> strangers;
  std::vector<int> missing = MissingRanks();
  absl::Status status;
  while (!missing.empty() && status.ok()) {
    std::vector<pollfd> waits = {{listener_, POLLIN, 0}};
    for (const int socket : strangers) waits.push_back({socket, POLLIN, 0});
    for (const int peer : missing) {
      if (peer < rank_) waits.push_back({lines_[peer].socket, POLLOUT, 0});
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - Clock::now());
    const int ready = poll(waits.data(), waits.size(),
                           static_cast<int>(std::clamp<int64_t>(
                               left.count(), 0, kLookPeriod.count())));
    if (ready <= 0) {
      for (const int peer : missing) lines_[peer].settled = is_gone(peer);
      missing = MissingRanks();
      if (!missing.empty() && left.count() <= 0) {
        status = absl::DeadlineExceededError(absl::StrCat(
            DescribeRanks(missing), " did not connect to this rank (", rank_,
            ") in time"));
        SetCulpritRank(status, missing.front());
      }
      continue;
    }
    for (int socket = 0; socket >= 0;) {
      socket =
          accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (socket >= 0) strangers.push_back(socket);
    }
    std::erase_if(strangers, [&](int socket) { return TakeHello(socket); });
    for (const pollfd& wait : waits) {
      if ((wait.events & POLLOUT) == 0 || wait.revents == 0) continue;
      for (const int peer : missing) {
        if (lines_[peer].socket == wait.fd) FinishConnecting(peer);
      }
    }
    missing = MissingRanks();
  }
  for (const int socket : strangers) ::close(socket);
  ::close(std::exchange(listener_, -1));
  return status;
}

void Lines::Activate(int peer) {
  if (std::find(active_.begin(), active_.end(), peer) == active_.end()) {
    active_.push_back(peer);
  }
}

uint64_t Lines::PostSend(int peer, const void* data, size_t bytes) {
  Line& line = lines_[peer];
  // Nothing is written to it.
  line.sends.push_back(
      {const_cast<std::byte*>(static_cast<const std::byte*>(data)), bytes});
  Activate(peer);
  return line.sent + line.sends.size();
}

uint64_t Lines::PostReceive(int peer, void* data, size_t bytes) {
  Line& line = lines_[peer];
  line.receives.push_back({static_cast<std::byte*>(data), bytes});
  Activate(peer);
  return line.received + line.receives.size();
}

Lines::Progress Lines::Send(Line& line) {
  bool moved = false;
  while (!line.sends.empty()) {
    Part& part = line.sends.front();
    if (part.bytes > 0) {
      const ssize_t sent =
          send(line.socket, part.data, std::min(part.bytes, kTurnBytes),
               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && !IsTemporary(errno)) return Progress::kBroken;
      if (sent <= 0) break;
      moved = true;
      part.data += sent;
      part.bytes -= sent;
      if (part.bytes > 0) break;  // It is the other lines' turn.
    }
    line.sends.pop_front();
    ++line.sent;
  }
  return moved ? Progress::kMoved : Progress::kNothing;
}

Lines::Progress Lines::Receive(Line& line) {
  bool moved = false;
  while (!line.receives.empty()) {
    Part& part = line.receives.front();
    if (part.bytes > 0) {
      const ssize_t received =
          recv(line.socket, part.data, std::min(part.bytes, kTurnBytes),
               MSG_DONTWAIT);
      if (received == 0 || (received < 0 && !IsTemporary(errno))) {
        return Progress::kBroken;
      }
      if (received < 0) break;
      moved = true;
      part.data += received;
      part.bytes -= received;
      if (part.bytes > 0) break;
    }
    line.receives.pop_front();
    ++line.received;
  }
  return moved ? Progress::kMoved : Progress::kNothing;
}

Lines::Progress Lines::MoveAll() {
  bool moved = false;
  for (const int peer : active_) {
    Line& line = lines_[peer];
    for (const Progress progress : {Receive(line), Send(line)}) {
      if (progress == Progress::kBroken) {
        broken_peer_ = peer;
        return progress;
      }
      moved |= progress == Progress::kMoved;
    }
  }
  std::erase_if(active_, [this](int peer) {
    return lines_[peer].sends.empty() && lines_[peer].receives.empty();
  });
  return moved ? Progress::kMoved : Progress::kNothing;
}

Lines::Outcome Lines::AwaitCounter(int peer, const uint64_t& counter,
                                   uint64_t number) {
  std::vector<pollfd> waits;
  while (counter < number) {
    switch (MoveAll()) {
      case Progress::kBroken:
        return Outcome::kBroken;
      case Progress::kMoved:
        continue;
      case Progress::kNothing:
        break;
    }
    if (counter >= number) break;
    waits.assign({{woken_, POLLIN, 0}});
    for (const int active : active_) {
      const Line& line = lines_[active];
      const int events = (line.sends.empty() ? 0 : POLLOUT) |
                         (line.receives.empty() ? 0 : POLLIN);
      waits.push_back({line.socket, static_cast<short>(events), 0});  // NOLINT
    }
    while (poll(waits.data(), waits.size(), -1) < 0 && errno == EINTR) {
    }
    if (waits[0].revents != 0) return Outcome::kWoken;
  }
  return Outcome::kDone;
}

Lines::Outcome Lines::AwaitSend(int peer, uint64_t number) {
  return AwaitCounter(peer, lines_[peer].sent, number);
}

Lines::Outcome Lines::AwaitReceive(int peer, uint64_t number) {
  return AwaitCounter(peer, lines_[peer].received, number);
}

Lines::Outcome Lines::Write(int peer, const void* head, size_t head_bytes,
                            const void* body, size_t body_bytes) {
  Line& line = lines_[peer];
  // What is written to a peer that has closed its end is lost without an error,
  // while something that it sent before may still be read: this rank would have
  // done its part in a collective that has failed.
  pollfd end = {line.socket, POLLRDHUP, 0};
  if (line.socket < 0 || poll(&end, 1, 0) > 0) {
    broken_peer_ = peer;
    return Outcome::kBroken;
  }
  size_t sent = 0;
  if (line.sends.empty()) {
    // Both in one call, and normally all of them.
    iovec parts[] = {{const_cast<void*>(head), head_bytes},
                     {const_cast<void*>(body), body_bytes}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    sent = std::max<ssize_t>(
        0, sendmsg(line.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (sent == head_bytes + body_bytes) return Outcome::kDone;
  }
  const size_t sent_of_head = std::min(sent, head_bytes);
  const size_t sent_of_body = sent - sent_of_head;
  PostSend(peer, static_cast<const std::byte*>(head) + sent_of_head,
           head_bytes - sent_of_head);
  return AwaitSend(
      peer, PostSend(peer, static_cast<const std::byte*>(body) + sent_of_body,
                     body_bytes - sent_of_body));
}

Lines::Outcome Lines::Read(int peer, void* data, size_t bytes) {
  return AwaitReceive(peer, PostReceive(peer, data, bytes));
}

void Lines::Wake() { eventfd_write(woken_, 1); }

void Lines::Close() {
  for (Line& line : lines_) {
    if (line.socket >= 0) ::close(std::exchange(line.socket, -1));
    line.sends.clear();
    line.receives.clear();
  }
  active_.clear();
  if (listener_ >= 0) ::close(std::exchange(listener_, -1));
}

}  // namespace muster::dataplane::gloo_internal
