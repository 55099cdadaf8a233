#include "coordinator/server/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

// Descriptors of the process that no connection gets.
constexpr rlim_t kReservedDescriptors = 128;
constexpr int kBacklog = 4096;
constexpr int kRetryMs = 100;

// The first descriptor that no connection gets. The system gives the lowest
// free one, so all below it are in use.
int FirstReserved() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t reserved = std::min(kReservedDescriptors, limit.rlim_cur / 2);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur - reserved, 1 << 30));
}

// Returns the descriptor, or a negative errno.
int ListenOn(const addrinfo& address, int port) {
  const int fd =
      socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  const int yes = 1;
  // Without it a port in TIME_WAIT would look like one in use.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  // Accepted connections inherit it.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  // Makes [::] include IPv4, whatever the system's default is.
  const int no = 0;
  if (address.ai_family == AF_INET6 &&
      IN6_IS_ADDR_UNSPECIFIED(
          &reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr)) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  }
  sockaddr_storage bound = {};
  memcpy(&bound, address.ai_addr, address.ai_addrlen);
  // If the port is 0, the first address chooses it and later ones use the same.
  if (address.ai_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(bound).sin_port =
        htons(static_cast<uint16_t>(port));
  } else if (address.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(bound).sin6_port =
        htons(static_cast<uint16_t>(port));
  }
  if (bind(fd, reinterpret_cast<sockaddr*>(&bound), address.ai_addrlen) != 0 ||
      listen(fd, kBacklog) != 0) {
    return -errno;
  }
  std::move(close_fd).Cancel();
  return fd;
}

int GetPort(int fd) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

StatusOr<std::unique_ptr<Listener>> Listener::Bind(const Endpoint& given) {
  const Endpoint endpoint = ListeningEndpoint(given);
  const auto failure = [&](std::string why) {
    why[0] = absl::ascii_tolower(why[0]);
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
  if (error != 0) return failure(gai_strerror(error));
  const auto free_addresses =
      absl::MakeCleanup([addresses] { freeaddrinfo(addresses); });
  std::unique_ptr<Listener> listener(new Listener);
  listener->port_ = endpoint.port;
  int cause = 0;
  for (const addrinfo* a = addresses; a != nullptr; a = a->ai_next) {
    const int fd = ListenOn(*a, listener->port_);
    if (fd >= 0) {
      listener->listening_.push_back(fd);
      listener->port_ = GetPort(fd);
      continue;
    }
    // A name may have an address that does not exist here (localhost without
    // IPv6). An address that is in use is an error.
    cause = -fd;
    if (cause == EADDRINUSE) return failure(strerror(cause));
  }
  if (listener->listening_.empty()) return failure(strerror(cause));
  listener->stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener->stop_ < 0) return failure(strerror(errno));
  return listener;
}

StatusOr<std::unique_ptr<Listener>> Listener::Duplicate(int fd) {
  int listens = 0;
  socklen_t bytes = sizeof(listens);
  const bool is_socket =
      getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0;
  const int port = is_socket ? GetPort(fd) : 0;
  // A socket without a port would get any port.
  if (port == 0 || (listens == 0 && listen(fd, kBacklog) != 0)) {
    return InvalidArgumentError(
        absl::StrCat("listen_fd is ", fd,
                     ", which is no TCP socket that listens or is bound to a "
                     "port"));
  }
  const int yes = 1;
  std::unique_ptr<Listener> listener(new Listener);
  listener->stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener->stop_ < 0 ||
      fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("listen_fd ", fd));
  }
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return ErrnoToStatus(errno, absl::StrCat("listen_fd ", fd));
  listener->listening_.push_back(own);
  listener->port_ = port;
  return listener;
}

Listener::~Listener() {
  Stop();
  if (stop_ >= 0) close(stop_);
}

void Listener::Start(Accepted accepted) {
  accepted_ = std::move(accepted);
  thread_ = std::thread([this] { AcceptLoop(); });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    if (write(stop_, &one, sizeof(one)) < 0) PLOG(FATAL) << "eventfd";
    thread_.join();
  }
  for (const int fd : listening_) close(fd);
  listening_.clear();
}

void Listener::AcceptLoop() {
  std::vector<pollfd> ready = {{stop_, POLLIN, 0}};
  for (const int fd : listening_) ready.push_back({fd, POLLIN, 0});
  bool wait = false;
  while (true) {
    // During the wait it polls only `stop_`.
    const int count =
        wait ? poll(ready.data(), 1, kRetryMs)
             : poll(ready.data(), static_cast<nfds_t>(ready.size()), -1);
    if (count < 0 && errno != EINTR) PLOG(FATAL) << "poll";
    if (count > 0 && ready[0].revents != 0) return;
    wait = false;
    for (size_t i = 1; i < ready.size(); ++i) {
      if (!AcceptAll(ready[i].fd)) wait = true;
    }
  }
}

bool Listener::AcceptAll(int listening) {
  while (true) {
    const int fd =
        accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      if (fd < FirstReserved()) {
        // Not each time that a connection closes while it is full.
        if (fd < FirstReserved() / 4 * 3) refusing_ = false;
        accepted_(fd);
      } else {
        close(fd);
        Refused(strerror(EMFILE));
      }
      continue;
    }
    switch (errno) {
      case EAGAIN:
        return true;
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        Refused(strerror(errno));
        return false;
      case EBADF:
      case EINVAL:
      case ENOTSOCK:
        PLOG(FATAL) << "accept";
        break;
      default:
        // The connection was gone before it was accepted.
        break;
    }
  }
}

void Listener::Refused(const char* cause) {
  if (std::exchange(refusing_, true)) return;
  LOG(WARNING) << "connections_refused: cause=" << base::Quote(cause)
               << " descriptors=" << FirstReserved();
}

}  // namespace muster::coordinator
