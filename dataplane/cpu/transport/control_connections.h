#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_CONTROL_CONNECTIONS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_CONTROL_CONNECTIONS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/cpu/transport/goodbye_message.h"

namespace muster::dataplane::cpu {

// ControlConnections are connections to all peers that carry nothing but one
// goodbye message, at the end. So a goodbye never queues behind data that
// nobody reads, and the end of a process is noticed at once, whatever it was
// doing. Called from any thread.
class ControlConnections {
 public:
  // How a connection has ended.
  struct End {
    // Zeros if the peer has sent none.
    GoodbyeBytes goodbye = {};
    // What the system says.
    std::string text;
  };

  explicit ControlConnections(int world_size);
  ~ControlConnections();

  ControlConnections(const ControlConnections&) = delete;
  ControlConnections& operator=(const ControlConnections&) = delete;

  // Before anything else: as TcpConnections::Take.
  Status Take(const std::vector<int>& sockets);

  // Whether `peer` has gone, and how. Not after Close.
  std::optional<End> Look(int peer);
  // The same, and waits for that until `deadline`, or Wake.
  std::optional<End> AwaitEnd(int peer, Instant deadline);

  // Ends AwaitEnd, now and later.
  void Wake();

  // Says it to all peers, and closes the connections. Does not block. Nobody is
  // in AwaitEnd.
  void Close(const GoodbyeBytes& goodbye);

 private:
  struct Peer {
    int socket = -1;
    // The part of its goodbye that has come.
    GoodbyeBytes goodbye = {};
    size_t bytes = 0;
    std::optional<End> end;
  };

  void CloseAll() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int woken_;  // an eventfd
  // errno of it.
  const int woken_error_;
  Mutex mutex_;
  std::vector<Peer> peers_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_CONTROL_CONNECTIONS_H_
