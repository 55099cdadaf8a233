#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_CONTROL_CONNECTIONS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_CONTROL_CONNECTIONS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "dataplane/cpu/transport/goodbye_message.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

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
    // The system's error text, or "connection closed".
    std::string text;
  };

  explicit ControlConnections(int world_size);
  ~ControlConnections();

  ControlConnections(const ControlConnections&) = delete;
  ControlConnections& operator=(const ControlConnections&) = delete;

  // Call it first. Takes ownership of the sockets, as TcpConnections::Take
  // does.
  Status Take(const std::vector<int>& sockets);

  // How the connection to `peer` ended; nullopt while it is open. Does not
  // wait. Do not call it after Close.
  std::optional<End> Look(int peer);
  // As Look, but waits for the end until `deadline` or Wake.
  std::optional<End> AwaitEnd(int peer, Instant deadline);

  // Makes AwaitEnd return, now and in later calls.
  void Wake();

  // Sends `goodbye` to all peers and closes the connections. Does not block. No
  // thread may be in AwaitEnd.
  void Close(const GoodbyeBytes& goodbye);

 private:
  struct Peer {
    int socket = -1;
    // The received part of the peer's goodbye.
    GoodbyeBytes goodbye = {};
    size_t bytes = 0;
    std::optional<End> end;
  };

  void CloseAll() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int woken_;  // an eventfd
  // The errno if eventfd failed, or 0.
  const int woken_error_;
  Mutex mutex_;
  std::vector<Peer> peers_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_CONTROL_CONNECTIONS_H_
