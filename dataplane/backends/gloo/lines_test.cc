#include "dataplane/backends/gloo/lines.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace muster::dataplane::gloo_internal {
namespace {

using Outcome = Lines::Outcome;

// Both ends of a connection over loopback, which do not block.
void MakeConnection(int ends[2]) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t bytes = sizeof(address);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(bind(listener, generic, bytes), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, generic, &bytes), 0);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(ends[0], generic, bytes), 0);
  ends[1] = accept(listener, nullptr, nullptr);
  close(listener);
  for (int i = 0; i < 2; ++i) fcntl(ends[i], F_SETFL, O_NONBLOCK);
}

// Ranks as objects of one process.
class LinesTest : public ::testing::Test {
 protected:
  void ConnectAll(int world_size) {
    std::vector<std::vector<int>> sockets(world_size,
                                          std::vector<int>(world_size, -1));
    for (int rank = 0; rank < world_size; ++rank) {
      for (int peer = 0; peer < rank; ++peer) {
        int ends[2];
        MakeConnection(ends);
        sockets[rank][peer] = ends[0];
        sockets[peer][rank] = ends[1];
      }
    }
    for (int rank = 0; rank < world_size; ++rank) {
      lines_.push_back(std::make_unique<Lines>(world_size));
      EXPECT_EQ(lines_[rank]->Take(sockets[rank]), absl::OkStatus());
    }
  }

  std::vector<std::unique_ptr<Lines>> lines_;
};

TEST_F(LinesTest, BytesArriveInTheirOrderBetweenAllRanks) {
  ConnectAll(3);
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
  ConnectAll(2);
  const std::string message(64 << 10, 'x');
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(lines_[i]->Write(1 - i, message.data(), message.size(), "", 0),
              Outcome::kDone);
  }
}

TEST_F(LinesTest, WhatIsUnderWayMovesWhileSomethingElseIsWaitedFor) {
  ConnectAll(3);
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
  ConnectAll(3);
  lines_[2]->Close();
  char bytes[2] = {};
  lines_[0]->PostReceive(2, bytes, 1);
  EXPECT_EQ(lines_[0]->Read(1, bytes + 1, 1), Outcome::kBroken);
  EXPECT_EQ(lines_[0]->broken_peer(), 2);
}

TEST_F(LinesTest, WhatCameBeforeTheEndIsRead) {
  ConnectAll(2);
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
  ConnectAll(2);
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

}  // namespace
}  // namespace muster::dataplane::gloo_internal
