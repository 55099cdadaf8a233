#include "coordinator/server/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace muster::coordinator {
namespace {

// Puts the system's words into the form of our error texts.
std::string LowerFirst(std::string text) {
  if (!text.empty()) text[0] = absl::ascii_tolower(text[0]);
  return text;
}

// Returns 0 or an errno.
int TryListen(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  // Without it a port in TIME_WAIT would look like one in use.
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd, address.ai_addr, address.ai_addrlen) != 0) return errno;
  if (listen(fd, 1) != 0) return errno;
  return 0;
}

}  // namespace

bool IsLoopback(const Endpoint& endpoint) {
  return endpoint.host == "localhost" || base::IsLoopback(endpoint.host);
}

Endpoint ListeningEndpoint(const Endpoint& endpoint) {
  if (endpoint.host != "::") return endpoint;
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 && errno == EAFNOSUPPORT) return {"0.0.0.0", endpoint.port};
  if (fd >= 0) close(fd);
  return endpoint;
}

std::string PeerAddress(int fd) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (getpeername(fd, raw, &bytes) != 0 ||
      getnameinfo(raw, bytes, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  absl::string_view name = host;
  // An IPv4 peer of a socket for both versions.
  if (absl::StrContains(name, '.')) absl::ConsumePrefix(&name, "::ffff:");
  return absl::StrContains(name, ':') ? absl::StrCat("[", name, "]:", port)
                                      : absl::StrCat(name, ":", port);
}

Status CheckCanListen(const Endpoint& endpoint) {
  const auto failure = [&](absl::string_view why) {
    return UnavailableError(
        absl::StrCat("cannot listen on ", endpoint.ToString(), ": ", why));
  };
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* addresses = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(),
                  &hints, &addresses);
  if (error != 0) return failure(LowerFirst(gai_strerror(error)));
  const auto free_addresses =
      absl::MakeCleanup([addresses] { freeaddrinfo(addresses); });
  int cause = 0;
  bool can = false;
  for (const addrinfo* a = addresses; a != nullptr; a = a->ai_next) {
    const int result = TryListen(*a);
    can = can || result == 0;
    if (result != 0) cause = result;
    // A name may have an address that does not exist here (localhost without
    // IPv6). An address that is in use is an error.
    if (result == EADDRINUSE) break;
  }
  if (can && cause != EADDRINUSE) return OkStatus();
  return failure(LowerFirst(strerror(cause)));
}

}  // namespace muster::coordinator
