#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_UNPROVED_CONNECTIONS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_UNPROVED_CONNECTIONS_H_

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <vector>

#include "absl/functional/function_ref.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// UnprovedConnections are the connections that a listener has accepted and that
// have not proved yet that they belong to the group. Anybody can connect and
// send nothing, so their number is limited (the oldest is closed), each is kept
// only for kPatience, and the oldest ones are closed when this process has no
// free descriptor for another connection.
class UnprovedConnections {
 public:
  static constexpr size_t kLimit = 64;
  static constexpr std::chrono::seconds kPatience{5};

  // Reads the connection without waiting. Returns true if it has taken or
  // closed the socket, false if the client has sent too little so far.
  using Prove = absl::FunctionRef<bool(int socket)>;

  // `expected`: the connections of the group that may come at once. Added to
  // kLimit.
  explicit UnprovedConnections(size_t expected = 0)
      : limit_(kLimit + expected) {}
  ~UnprovedConnections();

  UnprovedConnections(const UnprovedConnections&) = delete;
  UnprovedConnections& operator=(const UnprovedConnections&) = delete;

  // Adds the sockets to poll(2). deadline() is the time at which the oldest
  // expires.
  void AddTo(std::vector<pollfd>& waits) const;
  Instant deadline() const;

  // Calls `prove` for all connections and closes the expired ones.
  void ProveAll(Prove prove);

  // Accepts waiting connections, at most a limited number per call. Errors:
  // kResourceExhausted (this process has no descriptor or memory left and no
  // unproved connection to close).
  Status Accept(int listener, Prove prove);

 private:
  struct Connection {
    int socket = -1;
    Instant since;
  };

  void EndOldest(Prove prove);

  const size_t limit_;
  std::deque<Connection> connections_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_UNPROVED_CONNECTIONS_H_
