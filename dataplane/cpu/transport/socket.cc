#include "dataplane/cpu/transport/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// The send buffer holds the messages of a collective, so two ranks may write to
// each other without reading meanwhile. The system sizes the receive buffer.
constexpr int kBufferBytes = 256 << 10;

}  // namespace

const sockaddr* Generic(const AddressBytes& address) {
  return reinterpret_cast<const sockaddr*>(address.data());
}

int MakeSocket(const AddressBytes& address) {
  return ::socket(Generic(address)->sa_family,
                  SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

void SendAtOnce(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void SetForMessages(int socket) {
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kBufferBytes,
             sizeof(kBufferBytes));
  SendAtOnce(socket);
}

int PollTimeout(Instant deadline) {
  const auto left = std::clamp<Clock::duration>(
      deadline - Clock::now(), Clock::duration::zero(), std::chrono::hours(1));
  return static_cast<int>(
      std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

bool IsTemporary(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

bool IsOfThisProcess(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM || error == EADDRNOTAVAIL;
}

Status Failed(absl::string_view what, int error) {
  const std::string text = absl::StrCat(what, ": ", std::strerror(error));
  return IsOfThisProcess(error) ? ResourceExhaustedError(text)
                                : UnavailableError(text);
}

}  // namespace muster::dataplane::cpu
