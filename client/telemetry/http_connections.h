#ifndef MUSTER_CLIENT_TELEMETRY_HTTP_CONNECTIONS_H_
#define MUSTER_CLIENT_TELEMETRY_HTTP_CONNECTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace muster::worker {

// HttpConnections are those that a server with `threads` threads has. A thread
// belongs to a connection as long as it lasts, so one that waits for its client
// while another one waits for a thread is dropped, the oldest first: whoever is
// slow holds up nobody. Thread-safe.
class HttpConnections {
 public:
  explicit HttpConnections(size_t threads) : threads_(threads) {}

  // One was accepted, and will begin when a thread is free.
  void Accept() ABSL_LOCKS_EXCLUDED(mutex_);
  // A thread has it. Returns its number.
  uint64_t Begin(int socket) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before `socket` is closed.
  void End(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until the client has sent or taken something (`events` as poll has
  // them), the connection was dropped, or `deadline`; false then.
  bool AwaitClient(uint64_t number, short events,
                   std::chrono::steady_clock::time_point deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops all, and every one that begins later.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Connection {
    int socket = -1;
    bool waits = false;  // for its client
    bool dropped = false;
  };

  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t threads_;
  Mutex mutex_;
  size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Those with a thread, the oldest first.
  std::map<uint64_t, Connection> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_HTTP_CONNECTIONS_H_
