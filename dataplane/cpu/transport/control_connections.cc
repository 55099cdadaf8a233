#include "dataplane/cpu/transport/control_connections.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "dataplane/cpu/transport/socket.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

ControlConnections::ControlConnections(int world_size)
    : woken_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      woken_error_(woken_ < 0 ? errno : 0),
      peers_(world_size) {}

ControlConnections::~ControlConnections() {
  {
    MutexLock lock(mutex_);
    CloseAll();
  }
  if (woken_ >= 0) ::close(woken_);
}

Status ControlConnections::Take(const std::vector<int>& sockets) {
  MutexLock lock(mutex_);
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    peers_[peer].socket = sockets[peer];
  }
  if (woken_ >= 0) return OkStatus();
  return Failed("cannot wait for peers", woken_error_);
}

std::optional<ControlConnections::End> ControlConnections::Look(int peer) {
  MutexLock lock(mutex_);
  Peer& state = peers_[peer];
  if (state.end.has_value() || state.socket < 0) return state.end;
  // At the end of a connection recv returns at once, with 0 or an error.
  char* const rest = state.goodbye.data() + state.bytes;
  const size_t wanted = state.goodbye.size() - state.bytes;
  const ssize_t received = recv(state.socket, rest, wanted, MSG_DONTWAIT);
  const int error = received < 0 ? errno : 0;
  if (IsTemporary(error)) return std::nullopt;
  state.bytes += std::max<ssize_t>(received, 0);
  if (received > 0 && state.bytes < state.goodbye.size()) return std::nullopt;
  state.end = {.goodbye = state.goodbye,
               .text = error == 0 ? "connection closed" : std::strerror(error)};
  return state.end;
}

std::optional<ControlConnections::End> ControlConnections::AwaitEnd(
    int peer, Instant deadline) {
  pollfd waits[] = {{woken_, POLLIN, 0}, {-1, POLLIN, 0}};
  {
    MutexLock lock(mutex_);
    waits[1].fd = peers_[peer].socket;
  }
  while (true) {
    std::optional<End> end = Look(peer);
    if (end.has_value()) return end;
    const int ready = poll(waits, 2, PollTimeout(deadline));
    if (ready == 0 || waits[0].revents != 0) return Look(peer);
  }
}

void ControlConnections::Wake() {
  if (woken_ >= 0) eventfd_write(woken_, 1);
}

void ControlConnections::Close(const GoodbyeBytes& goodbye) {
  MutexLock lock(mutex_);
  for (const Peer& peer : peers_) {
    // Fits into the empty socket buffer. A peer that is gone needs no goodbye,
    // so errors are ignored.
    if (peer.socket >= 0) {
      (void)send(peer.socket, goodbye.data(), goodbye.size(),
                 MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
  CloseAll();
}

void ControlConnections::CloseAll() {
  for (Peer& peer : peers_) {
    if (peer.socket >= 0) ::close(std::exchange(peer.socket, -1));
  }
}

}  // namespace muster::dataplane::cpu
