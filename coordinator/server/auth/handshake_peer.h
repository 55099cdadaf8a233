#ifndef MUSTER_COORDINATOR_SERVER_AUTH_HANDSHAKE_PEER_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_HANDSHAKE_PEER_H_

#include <string>

namespace muster::coordinator {

// Finds the peer of a failed TLS handshake, which gRPC's transport does not
// report. OpenSSL calls back for each new connection state, which is created
// while the connection is accepted, and for each record of its handshake, on
// the thread that handles the record.

// While it lives, records that this thread is accepting a connection from
// `peer`.
class AcceptingFrom {
 public:
  explicit AcceptingFrom(std::string peer);
  ~AcceptingFrom();
  AcceptingFrom(const AcceptingFrom&) = delete;
  AcceptingFrom& operator=(const AcceptingFrom&) = delete;

 private:
  const std::string peer_;
};

// The peer whose handshake this thread has last processed; empty: none.
std::string HandshakePeer();

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_HANDSHAKE_PEER_H_
