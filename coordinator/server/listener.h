#ifndef MUSTER_COORDINATOR_SERVER_LISTENER_H_
#define MUSTER_COORDINATOR_SERVER_LISTENER_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "coordinator/server/endpoint.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// Listener accepts connections on a thread of its own and hands them to gRPC.
// gRPC's own listener stops for good at the first accept that finds no free
// file descriptor, so a client that opens enough connections would lock out
// every later one. This listener keeps the process's last descriptors free, for
// its files and its HTTP server, and closes connections beyond that.
class Listener {
 public:
  // Takes ownership of the connection's descriptor.
  using Accepted = std::function<void(int fd)>;

  // Listens on every address of the endpoint's host that this host has, all on
  // one port. [::] includes IPv4 and, on a kernel without IPv6, is IPv4 alone.
  // Connections wait until Start.
  // Errors: UNAVAILABLE `cannot listen on 127.0.0.1:7070: address already in
  //   use`.
  static StatusOr<std::unique_ptr<Listener>> Bind(const Endpoint& given);

  // Uses a duplicate of a TCP socket that listens already or is bound to a
  // port; the caller keeps `fd`.
  // Errors: INVALID_ARGUMENT (`fd` is not such a socket).
  static StatusOr<std::unique_ptr<Listener>> Duplicate(int fd);

  // Calls Stop().
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }

  void Start(Accepted accepted);

  // When it returns, no connection is accepted any more and the port is free.
  // Not by two threads at a time.
  void Stop();

 private:
  Listener() = default;

  void AcceptLoop();
  // Accepts the pending connections. Returns false if the caller must try again
  // a little later.
  bool AcceptAll(int listening);
  void Refused(const char* cause);

  std::vector<int> listening_;
  int stop_ = -1;  // becomes readable to end the thread
  int port_ = 0;
  Accepted accepted_;
  std::thread thread_;
  bool refusing_ = false;  // used by the thread: refusals are logged
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_LISTENER_H_
