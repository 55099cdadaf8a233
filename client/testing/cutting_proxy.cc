#include "client/testing/cutting_proxy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

#include "glog/logging.h"

namespace muster::testing {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// Closes with a reset, like a host that lost its state.
void Reset(int fd) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close(fd);
}

}  // namespace

CuttingProxy::CuttingProxy(int server_port)
    : server_port_(server_port),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  PCHECK(bind(listener_, raw, size) == 0);
  PCHECK(listen(listener_, 16) == 0);
  PCHECK(getsockname(listener_, raw, &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

CuttingProxy::~CuttingProxy() {
  stopping_ = true;
  eventfd_write(bell_, 1);
  thread_.join();
  close(listener_);
  close(bell_);
}

std::string CuttingProxy::address() const {
  return "127.0.0.1:" + std::to_string(port_);
}

void CuttingProxy::Cut() {
  cut_ = true;
  eventfd_write(bell_, 1);
  while (cut_) std::this_thread::yield();
}

bool CuttingProxy::Accept() {
  Link link;
  link.client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  link.server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(server_port_);
  if (connect(link.server, reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    close(link.client);
    close(link.server);
    return false;
  }
  const int yes = 1;
  setsockopt(link.client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(link.server, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  links_.push_back(link);
  ++connections_;
  return true;
}

bool CuttingProxy::Relay(const Link& link, int from) {
  std::array<char, 16384> chunk{};
  const ssize_t size = read(from, chunk.data(), chunk.size());
  if (size <= 0) return false;
  const bool up = from == link.client;
  if (up) bytes_up_ += size;
  if (!up && hold_answers_) return true;
  const int to = up ? link.server : link.client;
  return send(to, chunk.data(), static_cast<size_t>(size), MSG_NOSIGNAL) ==
         size;
}

void CuttingProxy::Run() {
  while (!stopping_) {
    std::vector<pollfd> waiting = {{listener_, POLLIN, 0}, {bell_, POLLIN, 0}};
    for (const Link& link : links_) {
      waiting.push_back({link.client, POLLIN, 0});
      waiting.push_back({link.server, POLLIN, 0});
    }
    poll(waiting.data(), waiting.size(), -1);
    eventfd_t rung = 0;
    eventfd_read(bell_, &rung);
    if (cut_) {
      for (const Link& link : links_) {
        Reset(link.client);
        Reset(link.server);
      }
      links_.clear();
      hold_answers_ = false;
      cut_ = false;
      continue;
    }
    std::vector<Link> alive;
    for (size_t i = 0; i < links_.size(); ++i) {
      const Link& link = links_[i];
      bool good = true;
      if (waiting[2 + 2 * i].revents != 0) good = Relay(link, link.client);
      if (good && waiting[3 + 2 * i].revents != 0) {
        good = Relay(link, link.server);
      }
      if (good) {
        alive.push_back(link);
      } else {
        close(link.client);
        close(link.server);
      }
    }
    links_ = std::move(alive);
    if (waiting[0].revents != 0) Accept();
  }
  for (const Link& link : links_) {
    close(link.client);
    close(link.server);
  }
}

}  // namespace muster::testing
