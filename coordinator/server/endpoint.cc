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
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace muster::coordinator {
namespace {

// The system's words in the form of our error texts.
std::string LowerFirst(std::string text) {
  if (!text.empty()) text[0] = absl::ascii_tolower(text[0]);
  return text;
}

// Returns 0 or an errno.
int TryListen(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  // Else a port in TIME_WAIT would look like one in use.
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd, address.ai_addr, address.ai_addrlen) != 0) return errno;
  if (listen(fd, 1) != 0) return errno;
  return 0;
}

}  // namespace

std::string Endpoint::ToString() const {
  const bool ipv6 = absl::StrContains(host, ':');
  return ipv6 ? absl::StrCat("[", host, "]:", port)
              : absl::StrCat(host, ":", port);
}

bool Endpoint::IsLoopback() const {
  if (host == "localhost") return true;
  const std::string address = host.substr(0, host.find('%'));
  in_addr v4;
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24) == 127;
  }
  in6_addr v6;
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 &&
         IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view option,
                                       absl::string_view text) {
  const auto malformed = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        option, " ", base::Quote(text), " is not host:port: ", why));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || text.back() == ']') {
    return malformed("no port");
  }
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return malformed("no closing ]");
  } else if (absl::StrContains(host, ':')) {
    return malformed("an IPv6 host needs brackets");
  }
  if (host.empty()) return malformed("no host");
  Endpoint endpoint;
  endpoint.host = std::string(host);
  if (!absl::SimpleAtoi(port, &endpoint.port) || endpoint.port < 0 ||
      endpoint.port > 65535) {
    return malformed("the port must be 0 to 65535");
  }
  return endpoint;
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
  // An IPv4 peer of a socket that serves both.
  if (absl::StrContains(name, '.')) absl::ConsumePrefix(&name, "::ffff:");
  return absl::StrContains(name, ':') ? absl::StrCat("[", name, "]:", port)
                                      : absl::StrCat(name, ":", port);
}

absl::Status CheckCanListen(const Endpoint& endpoint) {
  const auto failure = [&](absl::string_view why) {
    return absl::UnavailableError(
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
    // One of a name's addresses may not exist here (localhost without IPv6);
    // one that somebody else has is an error.
    if (result == EADDRINUSE) break;
  }
  if (can && cause != EADDRINUSE) return absl::OkStatus();
  return failure(LowerFirst(strerror(cause)));
}

}  // namespace muster::coordinator
