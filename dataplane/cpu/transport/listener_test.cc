#include "dataplane/cpu/transport/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/cpu/transport/address_exchange.h"
#include "dataplane/cpu/transport/unproved_connections.h"
#include "dataplane/culprit.h"
#include "dataplane/observe/metrics.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

using Sockets = Listener::Sockets;

AddressBytes Loopback() {
  AddressBytes bytes(sizeof(sockaddr_storage));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  std::memcpy(bytes.data(), &address, sizeof(address));
  return bytes;
}

// While it lives, this process gets no new descriptor.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    // All descriptors below the first free one are in use.
    const int free = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(free);
    const rlimit none = {static_cast<rlim_t>(free), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

void CloseAll(const Sockets& sockets) {
  for (const auto* list : {&sockets.data, &sockets.control}) {
    for (const int socket : *list) {
      if (socket >= 0) close(socket);
    }
  }
}

// Ranks in one process.
class ListenerTest : public ::testing::Test {
 protected:
  void Listen(int world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      listeners_.push_back(std::make_unique<Listener>(rank, world_size));
      addresses_.push_back(*listeners_[rank]->Listen(Loopback()));
    }
  }

  StatusOr<Sockets> Connect(int rank, std::chrono::milliseconds timeout) {
    return listeners_[rank]->Connect(addresses_, Clock::now() + timeout);
  }

  std::vector<Sockets> ConnectAll() {
    std::vector<std::future<StatusOr<Sockets>>> ranks;
    for (size_t rank = 0; rank < listeners_.size(); ++rank) {
      ranks.push_back(std::async(std::launch::async, [this, rank] {
        return Connect(static_cast<int>(rank), std::chrono::seconds(60));
      }));
    }
    std::vector<Sockets> all;
    for (auto& rank : ranks) {
      auto sockets = rank.get();
      EXPECT_TRUE(sockets.ok()) << sockets.status();
      all.push_back(*std::move(sockets));
    }
    return all;
  }

  // A new socket, connected to rank 0.
  int ConnectStranger() {
    const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ConnectToRank0(stranger);
    return stranger;
  }
  void ConnectToRank0(int stranger) {
    EXPECT_EQ(
        connect(stranger,
                reinterpret_cast<const sockaddr*>(addresses_[0].socket.data()),
                sizeof(sockaddr_in)),
        0);
  }

  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<RankAddress> addresses_;
};

TEST_F(ListenerTest, EveryRankIsConnectedToEveryOther) {
  Listen(4);
  const std::vector<Sockets> all = ConnectAll();
  for (int rank = 0; rank < 4; ++rank) {
    for (const auto list : {&Sockets::data, &Sockets::control}) {
      EXPECT_EQ((all[rank].*list)[rank], -1);
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == rank) continue;
        const char name = static_cast<char>(10 * rank + peer);
        EXPECT_EQ(send((all[rank].*list)[peer], &name, 1, 0), 1);
        char received = 0;
        EXPECT_EQ(recv((all[peer].*list)[rank], &received, 1, 0), 1);
        EXPECT_EQ(received, name);
      }
    }
  }
  for (const Sockets& sockets : all) CloseAll(sockets);
}

TEST_F(ListenerTest, RanksOfOneHostReadEachOthersMemoryUntilTheyStop) {
  Listen(3);
  const std::vector<Sockets> all = ConnectAll();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(all[rank].memories[rank].has_value());
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank) continue;
      ASSERT_TRUE(all[rank].memories[peer].has_value());
      EXPECT_TRUE(all[rank].memories[peer]->IsReadable());
    }
  }
  listeners_[2]->Stop();
  EXPECT_TRUE(all[0].memories[1]->IsReadable());
  EXPECT_FALSE(all[0].memories[2]->IsReadable());
  for (const Sockets& sockets : all) CloseAll(sockets);
}

TEST_F(ListenerTest, EitherRankMayKeepBothFromReadingMemory) {
  for (const size_t alone : {0, 1}) {
    listeners_.clear();
    addresses_.clear();
    for (const size_t rank : {0, 1}) {
      if (rank == alone) setenv("MUSTER_GLOO_PEER_MEMORY", "0", 1);
      listeners_.push_back(std::make_unique<Listener>(rank, 2));
      unsetenv("MUSTER_GLOO_PEER_MEMORY");
      addresses_.push_back(*listeners_[rank]->Listen(Loopback()));
    }
    const std::vector<Sockets> all = ConnectAll();
    EXPECT_FALSE(all[0].memories[1].has_value());
    EXPECT_FALSE(all[1].memories[0].has_value());
    for (const Sockets& sockets : all) CloseAll(sockets);
  }
}

TEST_F(ListenerTest, RanksThatDoNotConnectAreNamed) {
  Listen(3);
  const Status status = Connect(0, std::chrono::milliseconds(20)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "ranks 1, 2 did not connect to this rank (0) in time; 0 of 2 peers "
            "did");
  EXPECT_EQ(CulpritRank(status), 1);
}

TEST_F(ListenerTest, RankThatDoesNotListenIsNamedAtOnce) {
  Listen(2);
  listeners_[0].reset();
  const Status status = Connect(1, std::chrono::seconds(60)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()),
            "cannot connect to rank 0: Connection refused");
  EXPECT_EQ(CulpritRank(status), 0);
}

TEST_F(ListenerTest, RankThatDoesNotAnswerIsWaitedFor) {
  Listen(2);
  const Status status = Connect(1, std::chrono::milliseconds(20)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CulpritRank(status), 0);
}

TEST_F(ListenerTest, StrangersAreSentAway) {
  Listen(2);
  const int stranger = ConnectStranger();
  ASSERT_EQ(send(stranger, "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
  const std::vector<Sockets> all = ConnectAll();
  char byte = 0;
  EXPECT_LE(recv(stranger, &byte, 1, 0), 0);
  close(stranger);
  for (const Sockets& sockets : all) CloseAll(sockets);
}

TEST_F(ListenerTest, RankOfAnotherGroupTakesNobodysPlace) {
  Listen(2);
  // Its group's rank 0 has listened at that port before.
  Listener other(/*rank=*/1, /*world_size=*/2);
  const std::vector<RankAddress> others = {
      {addresses_[0].socket, addresses_[0].nonce + 1}, {}};
  auto rank0 = std::async(std::launch::async,
                          [&] { return Connect(0, std::chrono::seconds(60)); });
  const Status status =
      other.Connect(others, Clock::now() + std::chrono::seconds(60)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()),
            "rank 0 refuses a connection from this rank (1): is its process "
            "one of another run?");
  EXPECT_EQ(CulpritRank(status), 0);
  const auto rank1 = Connect(1, std::chrono::seconds(60));
  ASSERT_TRUE(rank1.ok()) << rank1.status();
  // Rank 0 may be a step behind and must not see rank 1 go.
  const auto connected = rank0.get();
  ASSERT_TRUE(connected.ok()) << connected.status();
  CloseAll(*rank1);
  CloseAll(*connected);
}

TEST_F(ListenerTest, WithoutDescriptorsNobodyListens) {
  Listener listener(/*rank=*/0, /*world_size=*/4);
  const NoDescriptorsLeft none;
  const Status expected =
      ResourceExhaustedError("cannot listen for 3 peers: Too many open files");
  EXPECT_EQ(listener.Listen(Loopback()).status(), expected);
  // The same if the eventfd for Wake could not be made.
  Listener later(/*rank=*/0, /*world_size=*/4);
  EXPECT_EQ(later.Listen(Loopback()).status(), expected);
}

TEST_F(ListenerTest, RankWithoutDescriptorsBlamesNobodyElse) {
  Listen(2);
  const int stranger = ConnectStranger();
  const NoDescriptorsLeft none;
  // Neither rank waits for the deadline.
  EXPECT_EQ(Connect(0, std::chrono::seconds(60)).status(),
            ResourceExhaustedError(
                "rank 0 cannot accept connections: Too many open files"));
  EXPECT_EQ(Connect(1, std::chrono::seconds(60)).status(),
            ResourceExhaustedError(
                "rank 1 cannot connect to its peers: Too many open files"));
  close(stranger);
}

bool AwaitEvent(int socket, short events) {  // NOLINT
  pollfd wait = {socket, events, 0};
  return poll(&wait, 1, /*timeout=*/60'000) == 1;
}

// Offers `peer` one more connection. Returns its socket, or -1 if it is not
// needed.
StatusOr<int> Offer(const Listener& listener, int peer) {
  for (int attempt = 1;; ++attempt) {
    const StatusOr<int> socket = listener.StartOffer(peer);
    if (!socket.ok()) return socket;
    EXPECT_TRUE(AwaitEvent(*socket, POLLOUT));
    Status status = listener.SendOffer(peer, *socket);
    if (status.ok()) {
      EXPECT_TRUE(AwaitEvent(*socket, POLLIN));
      const auto reply = listener.ReadReply(peer, *socket);
      if (reply.ok() && *reply == Listener::Reply::kTaken) return *socket;
      status = reply.status();
    }
    close(*socket);
    if (status.ok()) return -1;
    if (!IsAborted(status) || attempt == Listener::kAttempts) return status;
  }
}

// Serves `listener` and takes all offers.
class Taken {
 public:
  explicit Taken(Listener& listener) {
    listener.Serve([this](int peer, int socket, const auto& tell) {
      EXPECT_EQ(peer, 1);
      socket_ = socket;
      tell(Listener::Reply::kTaken);
    });
  }

  // Whether the taken connection is the other end of `socket`. Closes both.
  bool IsConnectedTo(int socket) const {
    char byte = 'x';
    const bool is = send(socket, &byte, 1, 0) == 1 &&
                    recv(socket_, &byte, 1, 0) == 1 && byte == 'x';
    close(socket);
    close(socket_);
    return is;
  }

 private:
  std::atomic<int> socket_{-1};
};

TEST_F(ListenerTest, OffersAreTakenUntilItStops) {
  Listen(2);
  const std::vector<Sockets> all = ConnectAll();
  const Taken taken(*listeners_[0]);
  // Clients that send nothing, or something else, delay no rank.
  const int silent = ConnectStranger();
  const int stranger = ConnectStranger();
  ASSERT_EQ(send(stranger, "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
  for (int i = 0; i < 3; ++i) {
    const auto socket = Offer(*listeners_[1], 0);
    ASSERT_TRUE(socket.ok()) << socket.status();
    EXPECT_TRUE(taken.IsConnectedTo(*socket));
  }
  listeners_[0]->Stop();
  const Status status = Offer(*listeners_[1], 0).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()),
            "cannot open a connection to rank 0: Connection refused");
  EXPECT_EQ(CulpritRank(status), 0);
  close(silent);
  close(stranger);
  for (const Sockets& sockets : all) CloseAll(sockets);
}

TEST_F(ListenerTest, AnOfferIsRefusedOrNotNeeded) {
  Listen(2);
  const std::vector<Sockets> all = ConnectAll();
  Listener::Reply reply = Listener::Reply::kNotNeeded;
  listeners_[0]->Serve(
      [&](int peer, int socket, const auto& tell) { tell(reply); });
  EXPECT_EQ(*Offer(*listeners_[1], 0), -1);
  reply = Listener::Reply::kRefused;
  EXPECT_EQ(Offer(*listeners_[1], 0).status().code(), StatusCode::kUnavailable);
  for (const Sockets& sockets : all) CloseAll(sockets);
}

// Clients that send nothing.
class Silent {
 public:
  ~Silent() {
    for (const int socket : sockets_) close(socket);
  }

  void Add(int socket) { sockets_.push_back(socket); }

  // Waits until at most `count` are connected. Returns their number.
  size_t AwaitAtMost(size_t count) {
    while (sockets_.size() > count) {
      std::vector<pollfd> waits;
      for (const int socket : sockets_) waits.push_back({socket, POLLIN, 0});
      EXPECT_GT(poll(waits.data(), waits.size(), /*timeout=*/60'000), 0);
      std::erase_if(sockets_, [](int socket) {
        char byte = 0;
        const bool is_closed =
            recv(socket, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
        if (is_closed) close(socket);
        return is_closed;
      });
    }
    return sockets_.size();
  }

 private:
  std::vector<int> sockets_;
};

TEST_F(ListenerTest, ConnectionsThatSayNothingAreFewWhenAGroupForms) {
  Listen(2);
  Silent silent;
  auto rank0 = std::async(std::launch::async,
                          [&] { return Connect(0, std::chrono::seconds(60)); });
  const int64_t refused = refused_connections.load();
  // More than the backlog.
  for (int i = 0; i < 200; ++i) silent.Add(ConnectStranger());
  EXPECT_GT(silent.AwaitAtMost(UnprovedConnections::kLimit + 2), 0u);
  EXPECT_GT(refused_connections.load(), refused);
  const auto rank1 = Connect(1, std::chrono::seconds(60));
  ASSERT_TRUE(rank1.ok()) << rank1.status();
  const auto sockets = rank0.get();
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  // All are closed when all ranks have come.
  EXPECT_EQ(silent.AwaitAtMost(0), 0u);
  CloseAll(*rank1);
  CloseAll(*sockets);
}

TEST_F(ListenerTest, ConnectionsThatSayNothingAreFewAndNotForLong) {
  Listen(2);
  const std::vector<Sockets> all = ConnectAll();
  const Taken taken(*listeners_[0]);
  Silent silent;
  for (int i = 0; i < 200; ++i) silent.Add(ConnectStranger());
  EXPECT_GT(silent.AwaitAtMost(UnprovedConnections::kLimit), 0u);
  const auto socket = Offer(*listeners_[1], 0);
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_TRUE(taken.IsConnectedTo(*socket));
  EXPECT_EQ(silent.AwaitAtMost(0), 0u);
  for (const Sockets& sockets : all) CloseAll(sockets);
}

TEST_F(ListenerTest, WithoutDescriptorsConnectionsThatSayNothingGo) {
  Listen(2);
  const std::vector<Sockets> all = ConnectAll();
  const Taken taken(*listeners_[0]);
  Silent silent;
  for (int i = 0; i < 10; ++i) silent.Add(ConnectStranger());
  const auto first = Offer(*listeners_[1], 0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(taken.IsConnectedTo(*first));
  // The ten came before, so they are accepted.
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  {
    const NoDescriptorsLeft none;
    ConnectToRank0(stranger);
    // One of the ten is closed.
    silent.AwaitAtMost(9);
  }
  close(stranger);
  for (const Sockets& sockets : all) CloseAll(sockets);
}

TEST_F(ListenerTest, WakeEndsConnecting) {
  Listen(2);
  auto connecting = std::async(
      std::launch::async, [&] { return Connect(0, std::chrono::hours(1)); });
  listeners_[0]->Wake();
  EXPECT_TRUE(IsCancelled(connecting.get().status()));
}

}  // namespace
}  // namespace muster::dataplane::cpu
