// Replaces a function of Gloo in the whole process: the dynamic linker prefers
// a program's own functions to those of shared libraries.
//
// Gloo asks for the peer of a new connection in its event loop. If the peer has
// reset the connection by then, Gloo's function throws, nothing catches the
// exception, and the process ends. With this function the connection fails at
// its first use instead.

#include <gloo/transport/tcp/address.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace gloo::transport::tcp {

Address Address::fromPeerName(int fd) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    address = {};
    address.ss_family = AF_INET;
  }
  return Address(address);
}

}  // namespace gloo::transport::tcp
