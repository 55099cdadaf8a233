#include "dataplane/backends/gloo/lines.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dataplane/backends/gloo/socket.h"

namespace muster::dataplane::gloo_internal {
namespace {

// What one connection moves before it is another one's turn.
constexpr size_t kTurnBytes = 256 << 10;

}  // namespace

Lines::Lines(int world_size)
    : woken_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      woken_error_(woken_ < 0 ? errno : 0),
      lines_(world_size) {}

Lines::~Lines() {
  Close();
  if (woken_ >= 0) ::close(woken_);
}

absl::Status Lines::Take(const std::vector<int>& sockets) {
  for (size_t peer = 0; peer < lines_.size(); ++peer) {
    lines_[peer].socket = sockets[peer];
  }
  if (woken_ >= 0) return absl::OkStatus();
  return Failed("cannot wait for peers", woken_error_);
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
}

}  // namespace muster::dataplane::gloo_internal
