#include "dataplane/cpu/transport/unproved_connections.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "dataplane/cpu/transport/socket.h"
#include "dataplane/observe/metrics.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
UnprovedConnections::~UnprovedConnections() {
  for (const Connection& connection : connections_) ::close(connection.socket);
}

void UnprovedConnections::AddTo(std::vector<pollfd>& waits) const {
  for (const Connection& connection : connections_) {
    waits.push_back({connection.socket, POLLIN, 0});
  }
}

Instant UnprovedConnections::deadline() const {
  return connections_.empty() ? Instant::max()
                              : connections_.front().since + kPatience;
}

void UnprovedConnections::EndOldest(Prove prove) {
  const int socket = connections_.front().socket;
  connections_.pop_front();
  if (prove(socket)) return;
  ::close(socket);
  refused_connections.fetch_add(1, std::memory_order_relaxed);
}

void UnprovedConnections::ProveAll(Prove prove) {
  std::erase_if(connections_, [&](const Connection& connection) {
    return prove(connection.socket);
  });
  while (deadline() <= Clock::now()) EndOldest(prove);
}

Status UnprovedConnections::Accept(int listener, Prove prove) {
  for (size_t accepted = 0; accepted < limit_;) {
    const int socket =
        accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      ++accepted;
      if (prove(socket)) continue;
      if (connections_.size() >= limit_) EndOldest(prove);
      connections_.push_back({socket, Clock::now()});
    } else if (IsOfThisProcess(errno)) {
      if (connections_.empty())
        return Failed("cannot accept connections", errno);
      EndOldest(prove);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      break;
    }
  }
  return OkStatus();
}

}  // namespace muster::dataplane::cpu
