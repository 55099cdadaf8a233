#include "dataplane/backends/gloo/lines.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dataplane/culprit.h"
#include "gtest/gtest.h"

namespace muster::dataplane::gloo_internal {
namespace {

using Outcome = Lines::Outcome;

AddressBytes Loopback() {
  AddressBytes bytes(sizeof(sockaddr_storage));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  std::memcpy(bytes.data(), &address, sizeof(address));
  return bytes;
}

bool NobodyIsGone(int) { return false; }

// While it lives, this process gets no descriptor.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    // All those below the first one that is free are in use.
    const int free = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(free);
    const rlimit none = {static_cast<rlim_t>(free), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

Instant In(std::chrono::milliseconds time) { return Clock::now() + time; }

// Ranks as objects of one process.
class LinesTest : public ::testing::Test {
 protected:
  void Listen(int world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      lines_.push_back(std::make_unique<Lines>(rank, world_size));
      addresses_.push_back(*lines_[rank]->Listen(Loopback()));
    }
  }

  void ConnectAll() {
    std::vector<std::future<absl::Status>> ranks;
    for (const auto& lines : lines_) {
      ranks.push_back(std::async(std::launch::async, [&] {
        return lines->Connect(addresses_, In(std::chrono::seconds(60)),
                              NobodyIsGone);
      }));
    }
    for (auto& rank : ranks) EXPECT_EQ(rank.get(), absl::OkStatus());
  }

  // A socket that is connected to rank 0.
  int ConnectStranger() {
    const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(
        connect(stranger,
                reinterpret_cast<const sockaddr*>(addresses_[0].socket.data()),
                sizeof(sockaddr_in)),
        0);
    return stranger;
  }

  std::vector<std::unique_ptr<Lines>> lines_;
  std::vector<LineAddress> addresses_;
};

TEST_F(LinesTest, BytesArriveInTheirOrderBetweenAllRanks) {
  Listen(3);
  ConnectAll();
  for (int rank = 0; rank < 3; ++rank) {
    const int peer = (rank + 1) % 3;
    const char name = static_cast<char>('a' + rank);
    EXPECT_EQ(lines_[rank]->Write(peer, &name, 1, "12", 2), Outcome::kDone);
    EXPECT_EQ(lines_[rank]->Write(peer, "3", 1, nullptr, 0), Outcome::kDone);
  }
  for (int rank = 0; rank < 3; ++rank) {
    std::string text(4, ' ');
    EXPECT_EQ(lines_[rank]->Read((rank + 2) % 3, text.data(), text.size()),
              Outcome::kDone);
    EXPECT_EQ(text, std::string(1, "cab"[rank]) + "123");
  }
}

TEST_F(LinesTest, MessagesOfACollectiveNeedNobodyToRead) {
  Listen(2);
  ConnectAll();
  const std::string message(64 << 10, 'x');
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(lines_[i]->Write(1 - i, message.data(), message.size(), "", 0),
              Outcome::kDone);
  }
}

TEST_F(LinesTest, WhatIsUnderWayMovesWhileSomethingElseIsWaitedFor) {
  Listen(3);
  ConnectAll();
  // More than any buffer holds, from every rank to every other one: each has
  // to receive while it sends.
  constexpr size_t kBytes = 16 << 20;
  std::vector<std::future<bool>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const std::string own(kBytes, static_cast<char>('a' + rank));
      std::vector<std::string> others(3, std::string(kBytes, ' '));
      Lines& lines = *lines_[rank];
      bool good = true;
      for (const int peer : {(rank + 1) % 3, (rank + 2) % 3}) {
        lines.PostSend(peer, own.data(), own.size());
        lines.PostReceive(peer, others[peer].data(), kBytes / 2);
        lines.PostReceive(peer, others[peer].data() + kBytes / 2, kBytes / 2);
      }
      for (const int peer : {(rank + 1) % 3, (rank + 2) % 3}) {
        good &= lines.AwaitSend(peer, 1) == Outcome::kDone;
        good &= lines.AwaitReceive(peer, 2) == Outcome::kDone;
        good &=
            others[peer] == std::string(kBytes, static_cast<char>('a' + peer));
      }
      return good;
    }));
  }
  for (auto& rank : ranks) EXPECT_TRUE(rank.get());
}

TEST_F(LinesTest, TheOneThatHasEndedIsNamed) {
  Listen(3);
  ConnectAll();
  lines_[2]->Close();
  char bytes[2] = {};
  lines_[0]->PostReceive(2, bytes, 1);
  EXPECT_EQ(lines_[0]->Read(1, bytes + 1, 1), Outcome::kBroken);
  EXPECT_EQ(lines_[0]->broken_peer(), 2);
}

TEST_F(LinesTest, WhatCameBeforeTheEndIsRead) {
  Listen(2);
  ConnectAll();
  EXPECT_EQ(lines_[0]->Write(1, "last", 4, nullptr, 0), Outcome::kDone);
  lines_[0]->Close();
  // Nobody would read it.
  EXPECT_EQ(lines_[1]->Write(0, "x", 1, nullptr, 0), Outcome::kBroken);
  std::string text(4, ' ');
  EXPECT_EQ(lines_[1]->Read(0, text.data(), 4), Outcome::kDone);
  EXPECT_EQ(text, "last");
  EXPECT_EQ(lines_[1]->Read(0, text.data(), 1), Outcome::kBroken);
  // What is closed here, too.
  EXPECT_EQ(lines_[0]->Read(1, text.data(), 1), Outcome::kBroken);
  EXPECT_EQ(lines_[0]->Write(1, "x", 1, nullptr, 0), Outcome::kBroken);
}

TEST_F(LinesTest, WakeEndsWaitsUnderWayAndLaterOnes) {
  Listen(2);
  ConnectAll();
  auto reading = std::async(std::launch::async, [&] {
    char byte = 0;
    return lines_[1]->Read(0, &byte, 1);
  });
  lines_[1]->Wake();
  EXPECT_EQ(reading.get(), Outcome::kWoken);
  // More than any buffer holds.
  const std::string message(64 << 20, 'x');
  lines_[0]->Wake();
  EXPECT_EQ(lines_[0]->Write(1, message.data(), message.size(), "", 0),
            Outcome::kWoken);
}

TEST_F(LinesTest, RanksThatDoNotConnectAreNamed) {
  Listen(3);
  const absl::Status status = lines_[0]->Connect(
      addresses_, In(std::chrono::milliseconds(20)), NobodyIsGone);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "ranks 1, 2 did not connect to this rank (0) in time");
  EXPECT_EQ(CulpritRank(status), 1);
}

TEST_F(LinesTest, RankThatIsGoneIsNotWaitedFor) {
  Listen(2);
  EXPECT_EQ(lines_[0]->Connect(addresses_, In(std::chrono::seconds(60)),
                               [](int) { return true; }),
            absl::OkStatus());
  char byte = 0;
  EXPECT_EQ(lines_[0]->Read(1, &byte, 1), Outcome::kBroken);
  // Nor one that listens no more.
  EXPECT_EQ(lines_[1]->Connect(addresses_, In(std::chrono::seconds(60)),
                               [](int) { return true; }),
            absl::OkStatus());
  EXPECT_EQ(lines_[1]->Read(0, &byte, 1), Outcome::kBroken);
}

TEST_F(LinesTest, StrangersAreSentAway) {
  Listen(2);
  const int stranger = ConnectStranger();
  ASSERT_EQ(send(stranger, "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
  ConnectAll();
  char byte = 0;
  EXPECT_LE(recv(stranger, &byte, 1, 0), 0);
  close(stranger);
  EXPECT_EQ(lines_[1]->Write(0, "x", 1, nullptr, 0), Outcome::kDone);
  EXPECT_EQ(lines_[0]->Read(1, &byte, 1), Outcome::kDone);
}

TEST_F(LinesTest, RankOfAnotherGroupTakesNobodysPlace) {
  Listen(2);
  // Its rank 0 has listened there before.
  Lines other(/*rank=*/1, /*world_size=*/2);
  const std::vector<LineAddress> others = {
      {addresses_[0].socket, addresses_[0].nonce + 1}, {}};
  auto refused = std::async(std::launch::async, [&] {
    return other.Connect(others, In(std::chrono::seconds(60)), NobodyIsGone);
  });
  auto rank0 = std::async(std::launch::async, [&] {
    return lines_[0]->Connect(addresses_, In(std::chrono::seconds(60)),
                              NobodyIsGone);
  });
  const absl::Status status = refused.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()),
            "rank 0 refuses a connection from this rank (1): is its process "
            "one of another run?");
  EXPECT_EQ(CulpritRank(status), 0);
  EXPECT_EQ(lines_[1]->Connect(addresses_, In(std::chrono::seconds(60)),
                               NobodyIsGone),
            absl::OkStatus());
  EXPECT_EQ(rank0.get(), absl::OkStatus());
  char byte = 0;
  EXPECT_EQ(lines_[1]->Write(0, "x", 1, nullptr, 0), Outcome::kDone);
  EXPECT_EQ(lines_[0]->Read(1, &byte, 1), Outcome::kDone);
}

TEST_F(LinesTest, RankThatDoesNotAnswerIsWaitedFor) {
  Listen(2);
  const absl::Status status = lines_[1]->Connect(
      addresses_, In(std::chrono::milliseconds(20)), NobodyIsGone);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CulpritRank(status), 0);
}

TEST_F(LinesTest, WithoutDescriptorsNobodyListens) {
  AddressBytes address = Loopback();
  Lines lines(/*rank=*/0, /*world_size=*/4);
  const NoDescriptorsLeft none;
  EXPECT_EQ(lines.Listen(address).status(),
            absl::ResourceExhaustedError(
                "cannot listen for 3 peers: Too many open files"));
  // Nor where Wake would not.
  Lines later(/*rank=*/0, /*world_size=*/4);
  EXPECT_EQ(later.Listen(address).status(),
            absl::ResourceExhaustedError(
                "cannot listen for 3 peers: Too many open files"));
}

TEST_F(LinesTest, RankWithoutDescriptorsBlamesNobodyElse) {
  Listen(2);
  const int stranger = ConnectStranger();
  {
    const NoDescriptorsLeft none;
    // Neither waits for the deadline.
    EXPECT_EQ(lines_[0]->Connect(addresses_, In(std::chrono::seconds(60)),
                                 NobodyIsGone),
              absl::ResourceExhaustedError("rank 0 cannot accept connections: "
                                           "Too many open files"));
  }
  {
    const NoDescriptorsLeft none;
    EXPECT_EQ(
        lines_[1]->Connect(addresses_, In(std::chrono::seconds(60)),
                           NobodyIsGone),
        absl::ResourceExhaustedError("rank 1 cannot connect to its peers: "
                                     "Too many open files"));
  }
  close(stranger);
}

}  // namespace
}  // namespace muster::dataplane::gloo_internal
