#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_UNPROVED_CONNECTIONS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_UNPROVED_CONNECTIONS_H_

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/clock.h"
#include "base/status.h"

namespace muster::dataplane::cpu {

// UnprovedConnections are the connections that a listener has accepted and that
// have not proved yet that they belong to the group. Anybody can connect and
// send nothing, so their number is limited (the oldest is closed), each is kept
// only for a while, and none is kept when this process has no free descriptor
// for another connection.
class UnprovedConnections {
 public:
  static constexpr size_t kLimit = 64;
  static constexpr std::chrono::seconds kPatience{5};

  // Looks what a connection has said, without waiting. True: nothing more is to
  // be seen to here, it was taken, or closed.
  using Prove = absl::FunctionRef<bool(int socket)>;

  // `expected`: how many of the group may come at once, beyond kLimit.
  explicit UnprovedConnections(size_t expected = 0)
      : limit_(kLimit + expected) {}
  ~UnprovedConnections();

  UnprovedConnections(const UnprovedConnections&) = delete;
  UnprovedConnections& operator=(const UnprovedConnections&) = delete;

  // What to wait for, and until when.
  void AddTo(std::vector<pollfd>& waits) const;
  Instant deadline() const;

  // Proves those that are here, and closes those whose time is over.
  void ProveAll(Prove prove);

  // Accepts those that have connected; the rest soon, if they are many. Errors:
  // kResourceExhausted (no descriptor or memory is left, and none is held
  // here).
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
