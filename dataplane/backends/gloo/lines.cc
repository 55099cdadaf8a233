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
      sockets_(world_size, -1),
      settled_(world_size, false) {
  settled_[rank] = true;
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
      listen(listener_, static_cast<int>(sockets_.size())) != 0 ||
      getsockname(listener_, generic, &size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for ", sockets_.size() - 1,
                     " peers: ", std::strerror(errno)));
  }
  return address;
}

void Lines::StartConnecting(int peer, const AddressBytes& address) {
  sockets_[peer] = MakeSocket(address);
  if (connect(sockets_[peer], Generic(address), AddressSize(address)) == 0) {
    FinishConnecting(peer);
  } else if (errno != EINPROGRESS) {
    // It listened a moment ago: it has gone.
    ::close(std::exchange(sockets_[peer], -1));
    settled_[peer] = true;
  }
}

void Lines::FinishConnecting(int peer) {
  settled_[peer] = true;
  SendAtOnce(sockets_[peer]);
  const Hello hello = {.rank = rank_};
  // Into an empty buffer. Fails if it could not connect.
  if (send(sockets_[peer], &hello, sizeof(hello), MSG_NOSIGNAL) !=
      sizeof(hello)) {
    ::close(std::exchange(sockets_[peer], -1));
  }
}

bool Lines::TakeHello(int socket) {
  Hello hello;
  const ssize_t received = recv(socket, &hello, sizeof(hello), MSG_DONTWAIT);
  if (received < 0 && IsTemporary(errno)) return false;
  const bool is_peer = received == sizeof(hello) &&
                       hello.magic == Hello().magic && hello.rank > rank_ &&
                       hello.rank < static_cast<int>(sockets_.size()) &&
                       !settled_[hello.rank];
  if (!is_peer) {
    ::close(socket);
    return true;
  }
  SendAtOnce(socket);
  sockets_[hello.rank] = socket;
  settled_[hello.rank] = true;
  return true;
}

std::vector<int> Lines::MissingRanks() const {
  std::vector<int> missing;
  for (size_t peer = 0; peer < settled_.size(); ++peer) {
    if (!settled_[peer]) missing.push_back(static_cast<int>(peer));
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
      if (peer < rank_) waits.push_back({sockets_[peer], POLLOUT, 0});
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - Clock::now());
    const int ready = poll(waits.data(), waits.size(),
                           static_cast<int>(std::clamp<int64_t>(
                               left.count(), 0, kLookPeriod.count())));
    if (ready <= 0) {
      for (const int peer : missing) settled_[peer] = is_gone(peer);
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
      const auto found = std::find(sockets_.begin(), sockets_.end(), wait.fd);
      FinishConnecting(static_cast<int>(found - sockets_.begin()));
    }
    missing = MissingRanks();
  }
  for (const int socket : strangers) ::close(socket);
  ::close(std::exchange(listener_, -1));
  return status;
}

Lines::Outcome Lines::Await(int peer, short events) {
  pollfd waits[] = {{sockets_[peer], events, 0}, {woken_, POLLIN, 0}};
  while (poll(waits, 2, -1) < 0 && errno == EINTR) {
  }
  return waits[1].revents != 0 ? Outcome::kWoken : Outcome::kDone;
}

Lines::Outcome Lines::Write(int peer, const void* head, size_t head_bytes,
                            const void* body, size_t body_bytes) {
  // What is written to a peer that has closed its end is lost without an error,
  // while something that it sent before may still be read: this rank would have
  // done its part in a collective that has failed.
  pollfd end = {sockets_[peer], POLLRDHUP, 0};
  if (poll(&end, 1, 0) > 0) return Outcome::kBroken;
  iovec parts[] = {{const_cast<void*>(head), head_bytes},
                   {const_cast<void*>(body), body_bytes}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  while (parts[0].iov_len + parts[1].iov_len > 0) {
    if (sockets_[peer] < 0) return Outcome::kBroken;
    ssize_t sent =
        sendmsg(sockets_[peer], &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (!IsTemporary(errno)) return Outcome::kBroken;
      if (Await(peer, POLLOUT) == Outcome::kWoken) return Outcome::kWoken;
      continue;
    }
    for (iovec& part : parts) {
      const size_t taken = std::min<size_t>(sent, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
      part.iov_len -= taken;
      sent -= static_cast<ssize_t>(taken);
    }
  }
  return Outcome::kDone;
}

Lines::Outcome Lines::Read(int peer, void* data, size_t bytes) {
  auto* next = static_cast<std::byte*>(data);
  while (bytes > 0) {
    if (sockets_[peer] < 0) return Outcome::kBroken;
    const ssize_t received = recv(sockets_[peer], next, bytes, MSG_DONTWAIT);
    if (received > 0) {
      next += received;
      bytes -= received;
      continue;
    }
    if (received == 0 || !IsTemporary(errno)) return Outcome::kBroken;
    if (Await(peer, POLLIN) == Outcome::kWoken) return Outcome::kWoken;
  }
  return Outcome::kDone;
}

void Lines::Wake() { eventfd_write(woken_, 1); }

void Lines::Close() {
  for (int& socket : sockets_) {
    if (socket >= 0) ::close(std::exchange(socket, -1));
  }
  if (listener_ >= 0) ::close(std::exchange(listener_, -1));
}

}  // namespace muster::dataplane::gloo_internal
