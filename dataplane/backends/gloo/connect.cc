#include "dataplane/backends/gloo/connect.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dataplane/backends/gloo/gloo_errors.h"
#include "dataplane/culprit.h"
#include "dataplane/mutex.h"

namespace muster::dataplane::gloo_internal {
namespace {

// How long connections that are there may take to say so, on a machine with
// much else to do.
constexpr std::chrono::milliseconds kProbing{200};

// Calls a function at a deadline, on a thread of its own, unless it is
// destroyed before.
class Alarm {
 public:
  Alarm(Instant deadline, std::function<void()> at_deadline)
      : thread_([this, deadline, at_deadline = std::move(at_deadline)] {
          if (Wait(deadline)) at_deadline();
        }) {}

  // After this either nothing was or will be called, or it has returned.
  ~Alarm() {
    {
      MutexLock lock(mutex_);
      off_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }

 private:
  // Whether the deadline came.
  bool Wait(Instant deadline) {
    MutexLock lock(mutex_);
    while (!off_) {
      if (deadline == Instant::max()) {
        changed_.Wait(mutex_);
      } else if (!changed_.WaitUntil(mutex_, deadline) && !off_) {
        return true;
      }
    }
    return false;
  }

  Mutex mutex_;
  CondVar changed_;
  bool off_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses the others.
};

// A socket's address, in the order in which Gloo compares two of them: as they
// stand in the socket address.
struct Endpoint {
  std::string host;
  uint16_t port = 0;

  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
};

Endpoint EndpointOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return {std::string(reinterpret_cast<const char*>(&v4.sin_addr),
                        sizeof(v4.sin_addr)),
            v4.sin_port};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return {std::string(reinterpret_cast<const char*>(&v6.sin6_addr),
                      sizeof(v6.sin6_addr)),
          v6.sin6_port};
}

Endpoint EndpointOf(const AddressBytes& bytes) {
  sockaddr_storage address = {};
  std::memcpy(&address, bytes.data(), std::min(bytes.size(), sizeof(address)));
  return EndpointOf(address);
}

// Gloo lets the side with the greater address connect and the other one
// listen.
bool Connects(const AddressBytes& own, const AddressBytes& peer) {
  return EndpointOf(own) > EndpointOf(peer);
}

class Connector {
 public:
  Connector(::gloo::transport::Context& context,
            const std::vector<AddressBytes>& own,
            const std::vector<AddressBytes>& remote)
      : context_(context), remote_(remote) {
    for (const bool connects : {true, false}) {
      for (int peer = 0; peer < context.size; ++peer) {
        if (peer == context.rank) continue;
        if (Connects(own[peer], remote[peer]) == connects) {
          order_.push_back(peer);
        }
      }
      if (connects) opened_here_ = order_.size();
    }
  }

  // First every connection that this side opens: that needs nothing of the
  // peer but its listening socket. Then the others, which by then their peers
  // are opening at the same time; so one thread connects to all of them, and no
  // order of ranks can block.
  absl::Status Run(Instant deadline, const std::function<void(bool)>& spin) {
    absl::Status status;
    {
      // Gloo's own timeout of a connection is fixed before the rendezvous and
      // would not do.
      Alarm alarm(deadline, [this] { GiveUp(); });
      spin(true);
      for (size_t i = 0; i < order_.size() && status.ok(); ++i) {
        if (i == opened_here_) spin(false);
        status = Connect(order_[i]);
        MutexLock lock(mutex_);
        if (expired_) break;
        if (status.ok()) ++connected_;
      }
      spin(false);
    }
    MutexLock lock(mutex_);
    return expired_ ? Expired() : status;
  }

 private:
  ::gloo::transport::Pair& PairOf(int peer) { return *context_.getPair(peer); }

  absl::Status Connect(int peer) {
    absl::Status connected =
        Guard([&] { PairOf(peer).connect(remote_[peer]); });
    if (connected.ok()) return connected;
    absl::Status status = absl::UnavailableError(
        absl::StrCat("cannot connect to rank ", peer, ": ",
                     WithoutSourcePosition(connected.message())));
    SetCulpritRank(status, peer);
    return status;
  }

  absl::Status Expired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        DescribeRanks(missing_), " did not connect to this rank (",
        context_.rank, ") in time; ", order_.size() - missing_.size(), " of ",
        order_.size(), " peers did"));
    if (!missing_.empty()) SetCulpritRank(status, missing_.front());
    return status;
  }

  // Finds out who is missing, and ends the wait of Run by closing their pairs.
  // Gloo does not tell whether a pair is connected; but connecting to a peer
  // that has connected returns at once, and to another one, when it is closed.
  void GiveUp() {
    std::vector<int> waiting;
    {
      MutexLock lock(mutex_);
      expired_ = true;
      for (size_t i = connected_; i < order_.size(); ++i) {
        missing_.push_back(order_[i]);
        // Those that this side opens are under way, and not to be asked twice.
        if (i >= opened_here_) waiting.push_back(order_[i]);
      }
    }
    std::vector<std::thread> probes;
    probes.reserve(waiting.size());
    std::vector<int> answered;
    Mutex answered_mutex;
    for (const int peer : waiting) {
      probes.emplace_back([&, peer] {
        if (!Connect(peer).ok()) return;
        MutexLock lock(answered_mutex);
        answered.push_back(peer);
      });
    }
    std::this_thread::sleep_for(kProbing);
    {
      MutexLock lock(mutex_);
      MutexLock answered_lock(answered_mutex);
      for (const int peer : answered) std::erase(missing_, peer);
    }
    for (const int peer : order_) {
      (void)Guard([&] { PairOf(peer).close(); });
    }
    for (std::thread& probe : probes) probe.join();
  }

  ::gloo::transport::Context& context_;
  const std::vector<AddressBytes>& remote_;

  // All peers, those to which this side connects first.
  std::vector<int> order_;
  size_t opened_here_ = 0;

  Mutex mutex_;
  // How many of `order_` are connected.
  size_t connected_ ABSL_GUARDED_BY(mutex_) = 0;
  bool expired_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int> missing_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status ConnectPairs(::gloo::transport::Context& context,
                          const std::vector<AddressBytes>& own,
                          const std::vector<AddressBytes>& remote,
                          Instant deadline,
                          const std::function<void(bool)>& spin) {
  return Connector(context, own, remote).Run(deadline, spin);
}

std::vector<int> FindSockets(const std::vector<AddressBytes>& own,
                             const std::vector<AddressBytes>& remote) {
  // A pair's accepted socket is where it has listened; one that it has opened
  // leads to where the peer has.
  std::set<Endpoint> accepted;
  std::set<Endpoint> opened;
  for (size_t peer = 0; peer < own.size(); ++peer) {
    if (own[peer].empty()) continue;
    accepted.insert(EndpointOf(own[peer]));
    opened.insert(EndpointOf(remote[peer]));
  }
  std::vector<int> sockets;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int socket = -1;
    if (!absl::SimpleAtoi(entry.path().filename().native(), &socket)) continue;
    sockaddr_storage here = {};
    sockaddr_storage there = {};
    socklen_t here_bytes = sizeof(here);
    socklen_t there_bytes = sizeof(there);
    if (getpeername(socket, reinterpret_cast<sockaddr*>(&there),
                    &there_bytes) != 0 ||
        getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_bytes) !=
            0) {
      continue;
    }
    if (accepted.contains(EndpointOf(here)) ||
        opened.contains(EndpointOf(there))) {
      sockets.push_back(socket);
    }
  }
  return sockets;
}

}  // namespace muster::dataplane::gloo_internal
