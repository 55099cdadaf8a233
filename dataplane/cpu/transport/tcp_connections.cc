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

#include "absl/status/status.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/socket.h"

namespace muster::dataplane::gloo_internal {
namespace {

// What one connection moves before it is another one's turn, and what one
// peer's memory does.
constexpr size_t kTurnBytes = 256 << 10;
constexpr size_t kTakenTurnBytes = 1 << 20;

// From here on it is faster to offer something, and to be told that it was
// taken, than to send it.
constexpr size_t kOfferBytesMin = 128 << 10;

// What is read at once where a message begins: small ones are there as a whole.
constexpr size_t kAheadBytes = 4 << 10;

}  // namespace

Lines::Lines(int rank, int world_size)
    : rank_(rank),
      woken_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      woken_error_(woken_ < 0 ? errno : 0),
      lines_(world_size) {}

Lines::~Lines() {
  Close();
  if (woken_ >= 0) ::close(woken_);
}

absl::Status Lines::Take(const std::vector<int>& sockets,
                         const Memories& memories) {
  for (size_t peer = 0; peer < lines_.size(); ++peer) {
    lines_[peer].socket = sockets[peer];
    lines_[peer].memory = memories[peer];
  }
  if (woken_ >= 0) return absl::OkStatus();
  return Failed("cannot wait for peers", woken_error_);
}

uint64_t Lines::Line::sent() const {
  return offers.empty() ? written : std::min(written, offers.front() - 1);
}

bool Lines::Line::is_active() const {
  return !sends.empty() || !receives.empty() || !offers.empty() ||
         note.bytes > 0;
}

bool Lines::Line::wants_input() const {
  if (!current.has_value()) {
    return !receives.empty() || !offers.empty() || note.bytes > 0;
  }
  return current->kind == Kind::kNote ? note.bytes > 0 : !receives.empty();
}

void Lines::Activate(int peer) {
  if (std::find(active_.begin(), active_.end(), peer) == active_.end()) {
    active_.push_back(peer);
  }
}

bool Lines::IsOffered(const Line& line, size_t bytes) {
  return line.memory.has_value() && bytes >= kOfferBytesMin;
}

uint64_t Lines::PostSend(int peer, const void* data, size_t bytes) {
  Line& line = lines_[peer];
  const auto* const begin = static_cast<const std::byte*>(data);
  const uint64_t number = ++line.posted;
  if (IsOffered(line, bytes) && CanBeRead(data, bytes)) {
    line.sends.push_back(
        {.head = {.kind = Kind::kOffer,
                  .bytes = bytes,
                  .address = reinterpret_cast<uint64_t>(begin)}});
    line.offers.push_back(number);
  } else {
    line.sends.push_back({.head = {.kind = Kind::kData, .bytes = bytes},
                          .data = begin,
                          .bytes = bytes});
  }
  Activate(peer);
  return number;
}

uint64_t Lines::PostReceive(int peer, void* data, size_t bytes) {
  Line& line = lines_[peer];
  line.receives.push_back({static_cast<std::byte*>(data), bytes});
  Activate(peer);
  return line.received + line.receives.size();
}

Lines::Progress Lines::ProgressOf(ssize_t moved, const void* data,
                                  size_t bytes) {
  if (moved > 0) return Progress::kMoved;
  if (moved < 0 && IsTemporary(errno)) return Progress::kNothing;
  if (moved < 0 && errno == EFAULT) {
    bad_memory_ = BadOwnMemory(rank_, data, bytes);
  }
  return Progress::kBroken;
}

Lines::Progress Lines::Send(Line& line) {
  bool moved = false;
  while (!line.sends.empty()) {
    Outgoing& message = line.sends.front();
    if (message.head_bytes + message.bytes > 0) {
      auto* const head_end = reinterpret_cast<std::byte*>(&message.head + 1);
      // Nothing is written to it.
      iovec parts[] = {{head_end - message.head_bytes, message.head_bytes},
                       {const_cast<std::byte*>(message.data),
                        std::min(message.bytes, kTurnBytes)}};
      msghdr header = {};
      header.msg_iov = parts;
      header.msg_iovlen = 2;
      const ssize_t sent =
          sendmsg(line.socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
      const Progress progress =
          ProgressOf(sent, message.data, parts[1].iov_len);
      if (progress == Progress::kBroken) return progress;
      if (progress == Progress::kNothing) break;
      moved = true;
      const size_t sent_of_head = std::min<size_t>(sent, message.head_bytes);
      message.head_bytes -= sent_of_head;
      message.data += sent - sent_of_head;
      message.bytes -= sent - sent_of_head;
      // It is the other lines' turn.
      if (message.head_bytes + message.bytes > 0) break;
    }
    switch (message.end) {
      case Outgoing::kPart:
        break;
      case Outgoing::kWhole:
        ++line.written;
        break;
      case Outgoing::kAnswer:
        --line.answers;
        break;
    }
    line.sends.pop_front();
  }
  return moved ? Progress::kMoved : Progress::kNothing;
}

void Lines::AnswerOffers(Line& line) {
  // Before all that has not been begun: the peer may not read that before it
  // has the answer.
  auto place = line.sends.begin();
  while (place != line.sends.end() &&
         (place->head_bytes < sizeof(Head) || place->end == Outgoing::kPart)) {
    ++place;
  }
  line.sends.insert(place, {.head = {.kind = Kind::kTaken,
                                     .count = std::exchange(line.taken, 0)},
                            .end = Outgoing::kAnswer});
  ++line.answers;
}

Lines::Progress Lines::TakeOffered(Line& line, size_t& turn) {
  Head& offer = line.offered.front();
  Incoming& part = line.receives.front();
  const size_t bytes = std::min(part.bytes, kTakenTurnBytes);
  if (offer.bytes != part.bytes || !line.memory.has_value()) {
    return Progress::kBroken;
  }
  if (!line.memory->Read(offer.address, part.data, bytes)) {
    const auto peer = static_cast<int>(&line - lines_.data());
    bad_memory_ =
        line.memory->WhyUnread(rank_, peer, offer.address, part.data, bytes);
    return Progress::kBroken;
  }
  turn = 0;
  offer.address += bytes;
  offer.bytes -= bytes;
  part.data += bytes;
  part.bytes -= bytes;
  if (part.bytes > 0) return Progress::kMoved;
  line.offered.pop_front();
  line.receives.pop_front();
  ++line.received;
  ++line.taken;
  return Progress::kMoved;
}

Lines::Progress Lines::Interpret(Line& line, const Head& head) {
  switch (head.kind) {
    case Kind::kNote:
    case Kind::kData:
      line.current = head;
      return Progress::kMoved;
    case Kind::kOffer:
      line.offered.push_back(head);
      return Progress::kMoved;
    case Kind::kTaken:
      if (head.count > line.offers.size()) break;
      line.offers.erase(line.offers.begin(), line.offers.begin() + head.count);
      return Progress::kMoved;
  }
  return Progress::kBroken;  // Not what a rank sends.
}

Lines::Progress Lines::ReceiveHead(Line& line, size_t& turn) {
  const size_t there = line.ahead_end - line.ahead_begin;
  if (there >= sizeof(Head)) {
    Head head;
    std::memcpy(&head, line.ahead.data() + line.ahead_begin, sizeof(head));
    line.ahead_begin += sizeof(head);
    return Interpret(line, head);
  }
  if (!line.wants_input()) return Progress::kNothing;
  if (there == 0 && line.note.bytes == 0 && !line.receives.empty() &&
      !IsOffered(line, line.receives.front().bytes)) {
    return ReceiveData(line, turn);
  }
  if (line.ahead.size() < kAheadBytes) line.ahead.resize(kAheadBytes);
  std::memmove(line.ahead.data(), line.ahead.data() + line.ahead_begin, there);
  line.ahead_begin = 0;
  line.ahead_end = there;
  const ssize_t received = recv(line.socket, line.ahead.data() + there,
                                line.ahead.size() - there, MSG_DONTWAIT);
  const Progress progress =
      ProgressOf(received, line.ahead.data(), line.ahead.size());
  if (progress != Progress::kMoved) return progress;
  line.ahead_end += received;
  return Progress::kMoved;
}

Lines::Progress Lines::ReceiveData(Line& line, size_t& turn) {
  Head head;
  Incoming& part = line.receives.front();
  iovec parts[] = {{&head, sizeof(head)},
                   {part.data, std::min(part.bytes, turn)}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t received = recvmsg(line.socket, &message, MSG_DONTWAIT);
  const Progress progress = ProgressOf(received, part.data, parts[1].iov_len);
  if (progress != Progress::kMoved) return progress;
  const size_t of_head = std::min<size_t>(received, sizeof(head));
  const size_t of_part = received - of_head;
  if (of_head < sizeof(head) || head.kind != Kind::kData ||
      head.bytes != part.bytes) {
    // Something else comes first.
    line.ahead.resize(std::max<size_t>(kAheadBytes, received));
    std::memcpy(line.ahead.data(), &head, of_head);
    std::memcpy(line.ahead.data() + of_head, part.data, of_part);
    line.ahead_begin = 0;
    line.ahead_end = received;
    return Progress::kMoved;
  }
  if (of_part < parts[1].iov_len) turn = 0;
  part.data += of_part;
  part.bytes -= of_part;
  line.current = head;
  line.current->bytes = part.bytes;
  FinishData(line);
  return Progress::kMoved;
}

void Lines::FinishData(Line& line) {
  if (line.current->bytes > 0) return;
  line.current.reset();
  line.receives.pop_front();
  ++line.received;
}

Lines::Progress Lines::ReceiveInto(Line& line, Incoming& part, size_t& turn) {
  const size_t bytes = std::min<uint64_t>(part.bytes, line.current->bytes);
  size_t moved = std::min(bytes, line.ahead_end - line.ahead_begin);
  if (moved > 0) {
    std::memcpy(part.data, line.ahead.data() + line.ahead_begin, moved);
    line.ahead_begin += moved;
  } else if (bytes > 0) {
    const ssize_t received =
        recv(line.socket, part.data, std::min(bytes, turn), MSG_DONTWAIT);
    const Progress progress =
        ProgressOf(received, part.data, std::min(bytes, turn));
    if (progress != Progress::kMoved) return progress;
    moved = received;
    if (moved < bytes) turn = 0;
  }
  part.data += moved;
  part.bytes -= moved;
  line.current->bytes -= moved;
  return Progress::kMoved;
}

Lines::Progress Lines::ReceiveCurrent(Line& line, size_t& turn) {
  if (line.current->kind == Kind::kNote) {
    if (line.note.bytes > 0) {
      const Progress progress = ReceiveInto(line, line.note, turn);
      if (line.current->bytes == 0) line.current.reset();
      return progress;
    }
    // Who waits for what was posted has read the peer's notes before.
    return line.receives.empty() ? Progress::kNothing : Progress::kBroken;
  }
  if (line.receives.empty()) {
    return line.note.bytes > 0 ? Progress::kBroken : Progress::kNothing;
  }
  Incoming& part = line.receives.front();
  if (part.bytes != line.current->bytes) return Progress::kBroken;
  const Progress progress = ReceiveInto(line, part, turn);
  FinishData(line);
  return progress;
}

Lines::Progress Lines::ReceiveStep(Line& line, size_t& turn) {
  if (!line.offered.empty() && !line.receives.empty()) {
    return TakeOffered(line, turn);
  }
  return line.current.has_value() ? ReceiveCurrent(line, turn)
                                  : ReceiveHead(line, turn);
}

Lines::Progress Lines::Receive(Line& line) {
  bool moved = false;
  size_t turn = kTurnBytes;
  while (turn > 0) {
    const Progress progress = ReceiveStep(line, turn);
    if (progress == Progress::kBroken) return progress;
    if (progress == Progress::kNothing) break;
    moved = true;
  }
  if (line.taken > 0) AnswerOffers(line);
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
  std::erase_if(active_,
                [this](int peer) { return !lines_[peer].is_active(); });
  return moved ? Progress::kMoved : Progress::kNothing;
}

template <typename Done>
Lines::Outcome Lines::AwaitUntil(Done&& done) {
  std::vector<pollfd> waits;
  while (!done()) {
    switch (MoveAll()) {
      case Progress::kBroken:
        return Outcome::kBroken;
      case Progress::kMoved:
        continue;
      case Progress::kNothing:
        break;
    }
    if (done()) break;
    waits.assign({{woken_, POLLIN, 0}});
    for (const int active : active_) {
      const Line& line = lines_[active];
      const int events = (line.sends.empty() ? 0 : POLLOUT) |
                         (line.wants_input() ? POLLIN : 0);
      // The end of a line that nobody reads would end every poll.
      if (events == 0) continue;
      waits.push_back({line.socket, static_cast<short>(events), 0});  // NOLINT
    }
    while (poll(waits.data(), waits.size(), -1) < 0 && errno == EINTR) {
    }
    if (waits[0].revents != 0) return Outcome::kWoken;
  }
  return Outcome::kDone;
}

Lines::Outcome Lines::AwaitSend(int peer, uint64_t number) {
  const Line& line = lines_[peer];
  return AwaitUntil([&] { return line.sent() >= number; });
}

Lines::Outcome Lines::AwaitReceive(int peer, uint64_t number) {
  const Line& line = lines_[peer];
  // And the peer shall know it, even if nothing is awaited after this.
  return AwaitUntil(
      [&] { return line.received >= number && line.answers == 0; });
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
  const Head first = {.bytes = head_bytes + body_bytes};
  size_t sent = 0;
  if (line.sends.empty()) {
    // All in one call, and normally that is all.
    iovec parts[] = {{const_cast<Head*>(&first), sizeof(first)},
                     {const_cast<void*>(head), head_bytes},
                     {const_cast<void*>(body), body_bytes}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 3;
    sent = std::max<ssize_t>(
        0, sendmsg(line.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (sent == sizeof(first) + first.bytes) return Outcome::kDone;
  }
  const size_t sent_of_first = std::min(sent, sizeof(first));
  const size_t sent_of_head = std::min(sent - sent_of_first, head_bytes);
  const size_t sent_of_body = sent - sent_of_first - sent_of_head;
  line.sends.push_back(
      {.head = first,
       .head_bytes = sizeof(first) - sent_of_first,
       .data = static_cast<const std::byte*>(head) + sent_of_head,
       .bytes = head_bytes - sent_of_head,
       .end = Outgoing::kPart});
  line.sends.push_back(
      {.head_bytes = 0,
       .data = static_cast<const std::byte*>(body) + sent_of_body,
       .bytes = body_bytes - sent_of_body});
  Activate(peer);
  const uint64_t number = ++line.posted;
  return AwaitUntil([&] { return line.written >= number; });
}

Lines::Outcome Lines::Read(int peer, void* data, size_t bytes) {
  Line& line = lines_[peer];
  line.note = {static_cast<std::byte*>(data), bytes};
  Activate(peer);
  return AwaitUntil([&] { return line.note.bytes == 0; });
}

void Lines::Wake() { eventfd_write(woken_, 1); }

void Lines::Close() {
  for (Line& line : lines_) {
    if (line.socket >= 0) ::close(line.socket);
    line = Line();
  }
  active_.clear();
}

}  // namespace muster::dataplane::gloo_internal
