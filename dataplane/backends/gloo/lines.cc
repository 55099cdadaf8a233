#include "dataplane/backends/gloo/lines.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
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
#include "absl/strings/string_view.h"
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

// How long it may take until `is_gone` knows of a peer that has closed its
// sockets.
constexpr std::chrono::seconds kClosing{5};

// The first bytes of each side.
struct Hello {
  uint32_t magic = 0x6d757374;
  int32_t rank = 0;
  // That of the one to whom it is said: who knows it means this group.
  uint64_t nonce = 0;
};

socklen_t AddressSize(const AddressBytes& address) {
  sa_family_t family = 0;
  std::memcpy(&family, address.data(), sizeof(family));
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

const sockaddr* Generic(const AddressBytes& address) {
  return reinterpret_cast<const sockaddr*>(address.data());
}

bool IsOfThisProcess(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM || error == EADDRNOTAVAIL;
}

// `what` has failed with `error`, an errno.
absl::Status Failed(absl::string_view what, int error) {
  const std::string text = absl::StrCat(what, ": ", std::strerror(error));
  return IsOfThisProcess(error) ? absl::ResourceExhaustedError(text)
                                : absl::UnavailableError(text);
}

// -1 with errno.
int MakeSocket(const AddressBytes& address) {
  const int socket = ::socket(Generic(address)->sa_family,
                              SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return socket;
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

uint64_t RandomNonce() {
  uint64_t nonce = 0;
  // Fails only if a signal comes while the machine boots.
  while (getrandom(&nonce, sizeof(nonce), 0) < 0 && errno == EINTR) {
  }
  return nonce;
}

}  // namespace

Lines::Lines(int rank, int world_size)
    : rank_(rank),
      woken_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      woken_error_(woken_ < 0 ? errno : 0),
      nonce_(RandomNonce()),
      lines_(world_size) {
  lines_[rank].state = State::kSettled;
}

Lines::~Lines() {
  Close();
  if (woken_ >= 0) ::close(woken_);
}

absl::StatusOr<LineAddress> Lines::Listen(AddressBytes address) {
  const std::string what =
      absl::StrCat("cannot listen for ", lines_.size() - 1, " peers");
  // Nothing could end a wait.
  if (woken_ < 0) return Failed(what, woken_error_);
  auto* const generic = reinterpret_cast<sockaddr*>(address.data());
  // The port has one place in both families.
  std::memset(address.data() + offsetof(sockaddr_in, sin_port), 0,
              sizeof(in_port_t));
  listener_ = MakeSocket(address);
  socklen_t size = AddressSize(address);
  if (listener_ < 0 || bind(listener_, generic, size) != 0 ||
      listen(listener_, static_cast<int>(lines_.size())) != 0 ||
      getsockname(listener_, generic, &size) != 0) {
    return Failed(what, errno);
  }
  return LineAddress{std::move(address), nonce_};
}

absl::Status Lines::StartConnecting(int peer, const AddressBytes& address) {
  Line& line = lines_[peer];
  line.socket = MakeSocket(address);
  line.state = State::kConnecting;
  if (line.socket >= 0 &&
      connect(line.socket, Generic(address), AddressSize(address)) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  if (line.socket >= 0 && error == EINPROGRESS) return absl::OkStatus();
  if (line.socket < 0 || IsOfThisProcess(error)) {
    return Failed(absl::StrCat("rank ", rank_, " cannot connect to its peers"),
                  error);
  }
  // It listened a moment ago.
  Refused(peer);
  return absl::OkStatus();
}

void Lines::Refused(int peer) {
  ::close(std::exchange(lines_[peer].socket, -1));
  lines_[peer].state = State::kRefused;
  refused_at_ = std::min(refused_at_, Clock::now());
}

void Lines::Greet(int peer, uint64_t nonce) {
  Line& line = lines_[peer];
  if (line.state == State::kConnecting) {
    SendAtOnce(line.socket);
    const Hello hello = {.rank = rank_, .nonce = nonce};
    // Into an empty buffer. Fails if it could not connect.
    if (send(line.socket, &hello, sizeof(hello), MSG_NOSIGNAL) ==
        sizeof(hello)) {
      line.state = State::kGreeted;
    } else {
      Refused(peer);
    }
    return;
  }
  Hello answer;
  const ssize_t received =
      recv(line.socket, &answer, sizeof(answer), MSG_DONTWAIT);
  if (received < 0 && IsTemporary(errno)) return;
  if (received == sizeof(answer) && answer.magic == Hello().magic &&
      answer.rank == peer && answer.nonce == nonce_) {
    line.state = State::kSettled;
  } else {
    Refused(peer);
  }
}

bool Lines::TakeHello(int socket, const std::vector<LineAddress>& addresses) {
  Hello hello;
  const ssize_t received = recv(socket, &hello, sizeof(hello), MSG_DONTWAIT);
  if (received < 0 && IsTemporary(errno)) return false;
  const bool is_peer = received == sizeof(hello) &&
                       hello.magic == Hello().magic && hello.nonce == nonce_ &&
                       hello.rank > rank_ &&
                       hello.rank < static_cast<int>(lines_.size()) &&
                       lines_[hello.rank].state == State::kAwaited;
  if (!is_peer) {
    ::close(socket);
    return true;
  }
  SendAtOnce(socket);
  const Hello answer = {.rank = rank_, .nonce = addresses[hello.rank].nonce};
  // Into an empty buffer. If it fails, so will whoever uses the line.
  (void)send(socket, &answer, sizeof(answer), MSG_NOSIGNAL);
  lines_[hello.rank].socket = socket;
  lines_[hello.rank].state = State::kSettled;
  return true;
}

std::vector<int> Lines::MissingRanks() const {
  std::vector<int> missing;
  for (size_t peer = 0; peer < lines_.size(); ++peer) {
    if (lines_[peer].state != State::kSettled) {
      missing.push_back(static_cast<int>(peer));
    }
  }
  return missing;
}

absl::Status Lines::CheckMissing(const std::vector<int>& missing,
                                 Instant deadline) {
  const Instant now = Clock::now();
  absl::Status status;
  if (now >= deadline) {
    status = absl::DeadlineExceededError(
        absl::StrCat(DescribeRanks(missing), " did not connect to this rank (",
                     rank_, ") in time"));
    SetCulpritRank(status, missing.front());
    return status;
  }
  if (refused_at_ == Instant::max() || now < refused_at_ + kClosing) {
    return status;
  }
  for (const int peer : missing) {
    if (lines_[peer].state != State::kRefused) continue;
    status = absl::UnavailableError(
        absl::StrCat("rank ", peer, " refuses a connection from this rank (",
                     rank_, "): is its process one of another run?"));
    SetCulpritRank(status, peer);
    return status;
  }
  return status;
}

absl::Status Lines::Accept(std::vector<int>& strangers) {
  while (true) {
    const int socket =
        accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      strangers.push_back(socket);
    } else if (IsOfThisProcess(errno)) {
      return Failed(absl::StrCat("rank ", rank_, " cannot accept connections"),
                    errno);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return absl::OkStatus();
    }
  }
}

absl::Status Lines::AwaitGreetings(const std::vector<LineAddress>& addresses,
                                   Instant until, std::vector<int>& strangers) {
  std::vector<pollfd> waits;
  std::vector<int> peers;
  for (int peer = 0; peer < rank_; ++peer) {
    const Line& line = lines_[peer];
    if (line.state == State::kConnecting || line.state == State::kGreeted) {
      const int events = line.state == State::kGreeted ? POLLIN : POLLOUT;
      waits.push_back({line.socket, static_cast<short>(events), 0});  // NOLINT
      peers.push_back(peer);
    }
  }
  for (const int socket : strangers) waits.push_back({socket, POLLIN, 0});
  waits.push_back({listener_, POLLIN, 0});
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  const int ready = poll(waits.data(), waits.size(),
                         static_cast<int>(std::clamp<int64_t>(
                             left.count(), 0, kLookPeriod.count())));
  if (ready < 0 && errno != EINTR) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", rank_, " cannot wait for its peers: ", std::strerror(errno)));
  }
  if (ready <= 0) return absl::OkStatus();
  for (size_t i = 0; i < peers.size(); ++i) {
    if (waits[i].revents != 0) Greet(peers[i], addresses[peers[i]].nonce);
  }
  absl::Status status;
  if (waits.back().revents != 0) status = Accept(strangers);
  std::erase_if(strangers,
                [&](int socket) { return TakeHello(socket, addresses); });
  return status;
}

// The lower rank of two listens. Connections are made, greeted and answered in
// whatever order they get ready, so no order of ranks can block.
absl::Status Lines::Connect(const std::vector<LineAddress>& addresses,
                            Instant deadline,
                            const std::function<bool(int peer)>& is_gone) {
  absl::Status status;
  for (int peer = 0; peer < rank_ && status.ok(); ++peer) {
    status = StartConnecting(peer, addresses[peer].socket);
  }
  std::vector<int> strangers;
  std::vector<int> missing = MissingRanks();
  Instant next_look = std::min(deadline, Clock::now() + kLookPeriod);
  while (status.ok() && !missing.empty()) {
    status = AwaitGreetings(addresses, next_look, strangers);
    missing = MissingRanks();
    if (!status.ok() || missing.empty() || Clock::now() < next_look) continue;
    for (const int peer : missing) {
      if (!is_gone(peer)) continue;
      Line& line = lines_[peer];
      if (line.socket >= 0) ::close(std::exchange(line.socket, -1));
      line.state = State::kSettled;
    }
    missing = MissingRanks();
    if (!missing.empty()) status = CheckMissing(missing, deadline);
    next_look = std::min(deadline, Clock::now() + kLookPeriod);
  }
  for (const int socket : strangers) ::close(socket);
  if (listener_ >= 0) ::close(std::exchange(listener_, -1));
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
