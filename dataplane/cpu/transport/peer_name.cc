// A function of Gloo, which this one takes the place of in the whole process:
// the linker gives a program's own functions to the shared libraries that it
// uses, before theirs.
//
// Gloo asks for a connection's peer in its event loop, as the last step of
// making it. When the peer has reset the connection by then, Gloo's function
// throws, nobody catches that, and the process ends. Without it the connection
// is made, and fails at its first use, as one that is reset a little later.

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
