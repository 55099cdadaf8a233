#include "client/control/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "client/control/deadline.h"

namespace muster::internal {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr char kConnectionRefusedUrl[] = "muster/connection_refused";

// Returns "connection refused": our errors begin in lower case.
std::string ErrorText(int error) {
  std::array<char, 128> buffer{};
  std::string text = strerror_r(error, buffer.data(), buffer.size());
  if (!text.empty()) text[0] = absl::ascii_tolower(text[0]);
  return text;
}

StatusOr<AddressList> Resolve(const Endpoint& endpoint, int socket_type) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socket_type;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), absl::StrCat(endpoint.port).c_str(),
                  &hints, &list);
  if (error != 0) {
    return UnavailableError(absl::StrCat(
        "cannot resolve ", base::Quote(endpoint.host), ": ",
        error == EAI_SYSTEM ? ErrorText(errno) : gai_strerror(error),
        " (is the name right? it is looked up again: the name of a new pod "
        "takes a while)"));
  }
  return AddressList(list, &freeaddrinfo);
}

// Returns 0 after one of `events`, else the errno.
int Await(int fd, int16_t events, Instant deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return ETIMEDOUT;
    pollfd waiting{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&waiting, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return errno;
    if (ready > 0) return 0;
  }
}

// Returns 0 or the errno.
int ConnectOnce(int fd, const addrinfo& address, Instant deadline) {
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  int error = Await(fd, POLLOUT, deadline);
  socklen_t size = sizeof(error);
  if (error == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    return errno;
  }
  return error;
}

// Returns a connected non-blocking socket, or kUnavailable with only the
// system's reason.
StatusOr<int> Connect(const Endpoint& endpoint, Instant deadline) {
  const auto addresses = Resolve(endpoint, SOCK_STREAM);
  if (!addresses.ok()) return addresses.status();
  int left = 0;
  for (const addrinfo* each = addresses->get(); each != nullptr;
       each = each->ai_next) {
    ++left;
  }
  int error = EADDRNOTAVAIL;
  for (const addrinfo* each = addresses->get(); each != nullptr;
       each = each->ai_next) {
    // A host that does not answer must not take the time of the next ones.
    const Instant now = Clock::now();
    const Instant until = now + (deadline - now) / left--;
    const int fd =
        socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    error = fd < 0 ? errno : ConnectOnce(fd, *each, until);
    if (error == 0) return fd;
    if (fd >= 0) close(fd);
  }
  Status failure = UnavailableError(ErrorText(error));
  if (error == ECONNREFUSED) {
    failure.SetPayload(kConnectionRefusedUrl, "");
  }
  return failure;
}

std::string NumericAddress(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(address, size, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  return host.data();
}

// Accepts a scope, too: fe80::1%eth0.
bool IsNumeric(const std::string& host) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return false;
  freeaddrinfo(list);
  return true;
}

// Returns "" if there is no such interface or it has no address.
std::string AddressOfInterface(absl::string_view name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const absl::Cleanup release = [list] { freeifaddrs(list); };
  // Other hosts cannot use link-local addresses.
  for (const int family : {AF_INET, AF_INET6}) {
    const socklen_t size =
        family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family ||
          name != at->ifa_name) {
        continue;
      }
      std::string address = NumericAddress(at->ifa_addr, size);
      if (!address.empty() && !absl::StartsWith(address, "fe80")) {
        return address;
      }
    }
  }
  return "";
}

// Whether the address belongs to this host.
bool CanBind(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const absl::Cleanup closer = [fd] { close(fd); };
  return bind(fd, address.ai_addr, address.ai_addrlen) == 0;
}

}  // namespace

std::string WithoutBrackets(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2);
  }
  return host;
}

StatusOr<Endpoint> ParseEndpoint(absl::string_view text) {
  return base::ParseEndpoint("address", text);
}

StatusOr<std::vector<Endpoint>> ParseEndpoints(absl::string_view what,
                                               absl::string_view text,
                                               int default_port) {
  const std::vector<absl::string_view> elements = absl::StrSplit(text, ',');
  if (elements.size() > kEndpointsMax) {
    return InvalidArgumentError(
        absl::StrCat(what, " ", base::Quote(text), ": ", elements.size(),
                     " addresses, and ", kEndpointsMax, " is the most"));
  }
  std::vector<Endpoint> endpoints;
  std::set<std::string> seen;
  for (size_t i = 0; i < elements.size(); ++i) {
    const absl::string_view element =
        elements.size() == 1 ? text : absl::StripAsciiWhitespace(elements[i]);
    const std::string named =
        elements.size() == 1
            ? std::string(what)
            : absl::StrCat(what, " ", base::Quote(text), ": address ", i + 1);
    if (element.empty() && elements.size() > 1) {
      return InvalidArgumentError(absl::StrCat(named, " is empty"));
    }
    const bool has_port =
        default_port == 0 || element.empty() ||
        (absl::StrContains(element, ':') && !absl::EndsWith(element, "]"));
    StatusOr<Endpoint> endpoint = base::ParseEndpoint(
        named, has_port ? std::string(element)
                        : absl::StrCat(element, ":", default_port));
    if (!endpoint.ok()) return endpoint.status();
    if (seen.insert(endpoint->ToString()).second) {
      endpoints.push_back(*std::move(endpoint));
    }
  }
  return endpoints;
}

std::string JoinEndpoints(const std::vector<Endpoint>& endpoints) {
  return absl::StrJoin(endpoints, ",",
                       [](std::string* out, const Endpoint& endpoint) {
                         absl::StrAppend(out, endpoint.ToString());
                       });
}

std::vector<Endpoint> NumericEndpoints(const Endpoint& endpoint) {
  std::vector<Endpoint> endpoints;
  const auto addresses = Resolve(endpoint, SOCK_STREAM);
  if (!addresses.ok()) return endpoints;
  for (const addrinfo* each = addresses->get(); each != nullptr;
       each = each->ai_next) {
    std::string host = NumericAddress(each->ai_addr, each->ai_addrlen);
    if (!host.empty()) endpoints.push_back({std::move(host), endpoint.port});
  }
  return endpoints;
}

Status Probe(const Endpoint& endpoint, std::chrono::milliseconds timeout) {
  const StatusOr<int> fd = Connect(endpoint, Clock::now() + timeout);
  if (!fd.ok()) return fd.status();
  close(*fd);
  return OkStatus();
}

bool IsConnectionRefused(const Status& probed) {
  return probed.GetPayload(kConnectionRefusedUrl).has_value();
}

std::string DescribeStranger(const Endpoint& endpoint,
                             std::chrono::milliseconds timeout) {
  const Instant deadline = Clock::now() + timeout;
  const StatusOr<int> connected = Connect(endpoint, deadline);
  if (!connected.ok()) return "";
  const int fd = *connected;
  const absl::Cleanup closer = [fd] { close(fd); };
  // The start of a connection of HTTP/2, with an empty SETTINGS frame.
  constexpr char kPreface[] =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
  send(fd, kPreface, sizeof(kPreface), MSG_NOSIGNAL);
  if (Await(fd, POLLIN, deadline) != 0) {
    return "what listens there says nothing: it is no muster coordinator, or "
           "one that stands still";
  }
  std::array<char, 64> buffer{};
  const ssize_t bytes = recv(fd, buffer.data(), buffer.size(), 0);
  // The server closed the connection: it expects TLS, or is full.
  if (bytes <= 0) return "";
  absl::string_view words(buffer.data(), static_cast<size_t>(bytes));
  // A frame of HTTP/2 is short and so begins with 0. A TLS record begins with
  // its type, 20 to 23, and version 3.x.
  const bool is_tls =
      words.size() > 1 && words[0] >= 20 && words[0] <= 23 && words[1] == 3;
  if (words[0] == 0 || is_tls) return "";
  words = words.substr(0, words.find_first_of("\r\n"));
  return absl::StrCat("what answers there is no muster coordinator: it says ",
                      base::Quote(words));
}

StatusOr<std::string> LocalAddressTowards(const Endpoint& endpoint) {
  const auto addresses = Resolve(endpoint, SOCK_DGRAM);
  if (!addresses.ok()) return addresses.status();
  int error = EADDRNOTAVAIL;
  for (const addrinfo* each = addresses->get(); each != nullptr;
       each = each->ai_next) {
    const int fd = socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    const absl::Cleanup closer = [fd] { close(fd); };
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    // connect on a UDP socket only selects a route.
    if (connect(fd, each->ai_addr, each->ai_addrlen) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) {
      error = errno;
      continue;
    }
    return NumericAddress(reinterpret_cast<const sockaddr*>(&local), size);
  }
  return UnavailableError(absl::StrCat("no route to ", endpoint.ToString(),
                                       ": ", ErrorText(error)));
}

std::string ListenAddress(const Endpoint& endpoint) {
  if (endpoint.host == "localhost") {
    return Endpoint{"127.0.0.1", endpoint.port}.ToString();
  }
  if (IsNumeric(endpoint.host)) return endpoint.ToString();
  return Endpoint{"::", endpoint.port}.ToString();
}

std::string ReachableAddress(const char* interfaces) {
  if (interfaces != nullptr) {
    const absl::string_view names = interfaces;
    std::string address = AddressOfInterface(names.substr(0, names.find(',')));
    if (!address.empty()) return address;
  }
  const StatusOr<AddressList> list = Resolve({HostName(), 0}, SOCK_STREAM);
  if (list.ok()) {
    for (const addrinfo* at = list->get(); at != nullptr; at = at->ai_next) {
      std::string address = NumericAddress(at->ai_addr, at->ai_addrlen);
      if (!IsLoopback(address) && CanBind(*at)) return address;
    }
  }
  return "127.0.0.1";
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

}  // namespace muster::internal
