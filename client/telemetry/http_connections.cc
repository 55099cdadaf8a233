#include "client/telemetry/http_connections.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace muster::worker {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void HttpConnections::Accept() {
  MutexLock lock(mutex_);
  ++queued_;
  MakeRoom();
}

uint64_t HttpConnections::Begin(int socket) {
  MutexLock lock(mutex_);
  --queued_;
  Connection& connection = open_[next_];
  connection.socket = socket;
  if (stopping_) Drop(connection);
  return next_++;
}

void HttpConnections::End(uint64_t number) {
  MutexLock lock(mutex_);
  if (open_[number].dropped) --dropped_;
  open_.erase(number);
}

bool HttpConnections::AwaitClient(uint64_t number, short events,
                                  Clock::time_point deadline) {
  pollfd ready = {-1, events, 0};
  {
    MutexLock lock(mutex_);
    Connection& connection = open_[number];
    connection.waits = true;
    ready.fd = connection.socket;
    MakeRoom();
  }
  int count = 0;
  do {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    count =
        poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
  } while (count < 0 && errno == EINTR);
  MutexLock lock(mutex_);
  Connection& connection = open_[number];
  connection.waits = false;
  return count > 0 && !connection.dropped;
}

void HttpConnections::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  for (auto& [number, connection] : open_) Drop(connection);
}

void HttpConnections::MakeRoom() {
  for (auto& [number, connection] : open_) {
    if (open_.size() - dropped_ + queued_ <= threads_) return;
    if (connection.waits) Drop(connection);
  }
}

void HttpConnections::Drop(Connection& connection) {
  if (connection.dropped) return;
  connection.dropped = true;
  ++dropped_;
  // Wakes its thread, which closes it.
  shutdown(connection.socket, SHUT_RDWR);
}

}  // namespace muster::worker
