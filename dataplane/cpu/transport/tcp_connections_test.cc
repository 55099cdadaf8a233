#include "dataplane/cpu/transport/tcp_connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/culprit.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

using IoResult = TcpConnections::IoResult;

// Makes both ends of a connection over loopback, non-blocking.
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

// Ranks in one process.
class LinesTest : public ::testing::Test {
 protected:
  // If `near`, all ranks may read each other's memory.
  void ConnectAll(int world_size, bool near = false) {
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
    TcpConnections::Memories memories(world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      marks_.push_back(std::make_unique<Mark>(rank + 1));
      if (near) memories[rank] = PeerMemory(marks_[rank]->place(), rank + 1);
    }
    for (int rank = 0; rank < world_size; ++rank) {
      connections_.push_back(
          std::make_unique<TcpConnections>(rank, world_size));
      EXPECT_EQ(connections_[rank]->Take(sockets[rank], memories), OkStatus());
    }
  }

  std::vector<std::unique_ptr<Mark>> marks_;
  std::vector<std::unique_ptr<TcpConnections>> connections_;
};

TEST_F(LinesTest, BytesArriveInTheirOrderBetweenAllRanks) {
  ConnectAll(3);
  for (int rank = 0; rank < 3; ++rank) {
    const int peer = (rank + 1) % 3;
    const char name = static_cast<char>('a' + rank);
    EXPECT_EQ(connections_[rank]->Write(peer, &name, 1, "12", 2),
              IoResult::kDone);
    EXPECT_EQ(connections_[rank]->Write(peer, "3", 1, nullptr, 0),
              IoResult::kDone);
  }
  for (int rank = 0; rank < 3; ++rank) {
    std::string text(4, ' ');
    EXPECT_EQ(
        connections_[rank]->Read((rank + 2) % 3, text.data(), text.size()),
        IoResult::kDone);
    EXPECT_EQ(text, std::string(1, "cab"[rank]) + "123");
  }
}

TEST_F(LinesTest, MessagesOfACollectiveNeedNobodyToRead) {
  ConnectAll(2);
  const std::string message(64 << 10, 'x');
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(
        connections_[i]->Write(1 - i, message.data(), message.size(), "", 0),
        IoResult::kDone);
  }
}

class NearAndFarLinesTest : public LinesTest,
                            public ::testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(TcpConnections, NearAndFarLinesTest, ::testing::Bool(),
                         [](const auto& near) {
                           return near.param ? "Near" : "Far";
                         });

TEST_P(NearAndFarLinesTest, WhatIsUnderWayMovesWhileSomethingElseIsWaitedFor) {
  ConnectAll(3, GetParam());
  // More than any buffer holds, from every rank to every other: each has to
  // receive while it sends.
  constexpr size_t kBytes = 16 << 20;
  std::vector<std::future<bool>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const std::string own(kBytes, static_cast<char>('a' + rank));
      std::vector<std::string> others(3, std::string(kBytes, ' '));
      TcpConnections& connections = *connections_[rank];
      bool good = true;
      for (const int peer : {(rank + 1) % 3, (rank + 2) % 3}) {
        for (const size_t begin : {size_t{0}, kBytes / 2}) {
          connections.PostSend(peer, own.data() + begin, kBytes / 2);
          connections.PostReceive(peer, others[peer].data() + begin,
                                  kBytes / 2);
        }
      }
      for (const int peer : {(rank + 1) % 3, (rank + 2) % 3}) {
        good &= connections.AwaitSend(peer, 1) == IoResult::kDone;
        good &= connections.AwaitReceive(peer, 2) == IoResult::kDone;
        good &= connections.AwaitSend(peer, 2) == IoResult::kDone;
        good &=
            others[peer] == std::string(kBytes, static_cast<char>('a' + peer));
      }
      return good;
    }));
  }
  for (auto& rank : ranks) EXPECT_TRUE(rank.get());
}

// Rank `rank` of two sends notes and posted buffers of all sizes. Returns
// whether it receives the same from the other rank.
bool Converse(TcpConnections& connections, int rank) {
  const int peer = 1 - rank;
  const std::vector<size_t> sizes = {
      0,    1,       100 << 10, 7, 1 << 20, 5000,      40000, 3,
      4096, 2 << 20, 131000,    0, 3 << 20, 128 << 10, 33000};
  const char name = static_cast<char>('a' + rank);
  const char expected = static_cast<char>('a' + peer);
  bool good = true;
  for (int round = 0; round < 20; ++round) {
    const std::string head(40, name);
    const std::string body(round * 1000, name);
    good &= connections.Write(peer, head.data(), head.size(), body.data(),
                              body.size()) == IoResult::kDone;
    std::string note(head.size() + body.size(), ' ');
    good &= connections.Read(peer, note.data(), note.size()) == IoResult::kDone;
    good &= note == std::string(note.size(), expected);

    std::vector<std::string> sent;
    std::vector<std::string> received;
    for (const size_t size : sizes) {
      sent.emplace_back(size, name);
      received.emplace_back(size, ' ');
    }
    uint64_t last_sent = 0;
    uint64_t last_received = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      last_sent = connections.PostSend(peer, sent[i].data(), sizes[i]);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      last_received =
          connections.PostReceive(peer, received[i].data(), sizes[i]);
      if (i % 3 == 0) {
        good &=
            connections.AwaitReceive(peer, last_received) == IoResult::kDone;
      }
    }
    good &= connections.AwaitReceive(peer, last_received) == IoResult::kDone;
    good &= connections.AwaitSend(peer, last_sent) == IoResult::kDone;
    for (const std::string& text : received) {
      good &= text == std::string(text.size(), expected);
    }
  }
  return good;
}

TEST_P(NearAndFarLinesTest, NotesAndWhatIsPostedOfAllSizesKeepTheirOrder) {
  ConnectAll(2, GetParam());
  auto other = std::async(std::launch::async,
                          [&] { return Converse(*connections_[1], 1); });
  EXPECT_TRUE(Converse(*connections_[0], 0));
  EXPECT_TRUE(other.get());
}

TEST_F(LinesTest, LargeOnesOfNearPeersComeFromTheirMemory) {
  ConnectAll(2, /*near=*/true);
  std::string sent(1 << 20, 'x');
  const uint64_t number =
      connections_[0]->PostSend(1, sent.data(), sent.size());
  // The offer leaves with the note.
  EXPECT_EQ(connections_[0]->Write(1, "note", 4, nullptr, 0), IoResult::kDone);
  sent.assign(sent.size(), 'y');
  std::string received(sent.size(), ' ');
  auto sending = std::async(std::launch::async, [&] {
    return connections_[0]->AwaitSend(1, number);
  });
  EXPECT_EQ(
      connections_[1]->AwaitReceive(
          0, connections_[1]->PostReceive(0, received.data(), received.size())),
      IoResult::kDone);
  EXPECT_EQ(received, sent);
  // The sender gets the answer although the receiver does nothing more.
  EXPECT_EQ(sending.get(), IoResult::kDone);
  std::string note(4, ' ');
  EXPECT_EQ(connections_[1]->Read(0, note.data(), 4), IoResult::kDone);
  EXPECT_EQ(note, "note");
}

TEST_F(LinesTest, MemoryThatWasTakenBackIsNotBelieved) {
  ConnectAll(2, /*near=*/true);
  const std::string sent(1 << 20, 'x');
  connections_[0]->PostSend(1, sent.data(), sent.size());
  EXPECT_EQ(connections_[0]->Write(1, "note", 4, nullptr, 0), IoResult::kDone);
  marks_[0]->Clear();
  std::string received(sent.size(), ' ');
  EXPECT_EQ(
      connections_[1]->AwaitReceive(
          0, connections_[1]->PostReceive(0, received.data(), received.size())),
      IoResult::kBroken);
  EXPECT_EQ(connections_[1]->broken_peer(), 0);
}

TEST_F(LinesTest, SizesThatDifferEndTheLine) {
  for (const bool near : {false, true}) {
    connections_.clear();
    marks_.clear();
    ConnectAll(2, near);
    std::string bytes(128 << 10, 'x');
    connections_[0]->PostSend(1, bytes.data(), bytes.size());
    EXPECT_EQ(connections_[0]->Write(1, "note", 4, nullptr, 0),
              IoResult::kDone);
    EXPECT_EQ(
        connections_[1]->AwaitReceive(
            0, connections_[1]->PostReceive(0, bytes.data(), bytes.size() - 1)),
        IoResult::kBroken);
  }
}

TEST_F(LinesTest, TheOneThatHasEndedIsNamed) {
  ConnectAll(3);
  connections_[2]->Close();
  char bytes[2] = {};
  connections_[0]->PostReceive(2, bytes, 1);
  EXPECT_EQ(connections_[0]->Read(1, bytes + 1, 1), IoResult::kBroken);
  EXPECT_EQ(connections_[0]->broken_peer(), 2);
}

TEST_F(LinesTest, WhatCameBeforeTheEndIsRead) {
  ConnectAll(2);
  EXPECT_EQ(connections_[0]->Write(1, "last", 4, nullptr, 0), IoResult::kDone);
  connections_[0]->Close();
  // The peer would not read it.
  EXPECT_EQ(connections_[1]->Write(0, "x", 1, nullptr, 0), IoResult::kBroken);
  std::string text(4, ' ');
  EXPECT_EQ(connections_[1]->Read(0, text.data(), 4), IoResult::kDone);
  EXPECT_EQ(text, "last");
  EXPECT_EQ(connections_[1]->Read(0, text.data(), 1), IoResult::kBroken);
  // The same on the closed end.
  EXPECT_EQ(connections_[0]->Read(1, text.data(), 1), IoResult::kBroken);
  EXPECT_EQ(connections_[0]->Write(1, "x", 1, nullptr, 0), IoResult::kBroken);
}

TEST_F(LinesTest, WakeEndsWaitsUnderWayAndLaterOnes) {
  ConnectAll(2);
  auto reading = std::async(std::launch::async, [&] {
    char byte = 0;
    return connections_[1]->Read(0, &byte, 1);
  });
  connections_[1]->Wake();
  EXPECT_EQ(reading.get(), IoResult::kWoken);
  // More than any buffer holds.
  const std::string message(64 << 20, 'x');
  connections_[0]->Wake();
  EXPECT_EQ(connections_[0]->Write(1, message.data(), message.size(), "", 0),
            IoResult::kWoken);
}

TEST_F(LinesTest, MemoryThatIsNotThereIsNoFaultOfThePeer) {
  ConnectAll(2);
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const page =
      mmap(nullptr, page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  std::string text = "text";
  const uint64_t sent = connections_[0]->PostSend(1, text.data(), text.size());
  ASSERT_EQ(connections_[0]->AwaitSend(1, sent), IoResult::kDone);
  const uint64_t received = connections_[1]->PostReceive(0, page, text.size());
  EXPECT_EQ(connections_[1]->AwaitReceive(0, received), IoResult::kBroken);
  EXPECT_TRUE(IsInvalidArgument(connections_[1]->bad_memory()));
  EXPECT_EQ(CulpritRank(connections_[1]->bad_memory()), 1);
  const uint64_t bad = connections_[0]->PostSend(1, page, page_bytes);
  EXPECT_EQ(connections_[0]->AwaitSend(1, bad), IoResult::kBroken);
  EXPECT_EQ(CulpritRank(connections_[0]->bad_memory()), 0);
  EXPECT_EQ(munmap(page, page_bytes), 0);
}

TEST_F(LinesTest, APeersMemoryThatIsNotThereIsItsFault) {
  ConnectAll(2, /*near=*/true);
  constexpr size_t kBytes = 1 << 20;
  auto* const bytes =
      static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(bytes, MAP_FAILED);
  ASSERT_EQ(mprotect(bytes + kBytes / 4, kBytes / 4, PROT_NONE), 0);
  std::vector<std::byte> to(kBytes);
  connections_[0]->PostSend(1, bytes, kBytes);
  EXPECT_EQ(connections_[0]->Write(1, "x", 1, nullptr, 0), IoResult::kDone);
  const uint64_t received = connections_[1]->PostReceive(0, to.data(), kBytes);
  EXPECT_EQ(connections_[1]->AwaitReceive(0, received), IoResult::kBroken);
  EXPECT_EQ(CulpritRank(connections_[1]->bad_memory()), 0);
  EXPECT_EQ(munmap(bytes, kBytes), 0);
}

}  // namespace
}  // namespace muster::dataplane::cpu
