#include "dataplane/cpu/transport/gloo_pairs.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "dataplane/cpu/transport/listener.h"
#include "dataplane/culprit.h"
#include "gtest/gtest.h"

namespace muster::dataplane::cpu {
namespace {

using Reply = Listener::Reply;

// Two ranks in one process.
class PairsTest : public ::testing::Test {
 protected:
  struct Rank {
    explicit Rank(int rank) : listener(rank, 2), pairs(rank, 2, listener) {
      address = *listener.Listen(*pairs.Start({.local_address = "127.0.0.1"}));
    }
    ~Rank() {
      pairs.Abort();
      listener.Stop();
      pairs.Close();
      for (const auto* list : {&sockets.data, &sockets.control}) {
        for (const int socket : *list) {
          if (socket >= 0) close(socket);
        }
      }
    }

    Listener listener;
    Pairs pairs;
    RankAddress address;
    Listener::Sockets sockets;
  };

  PairsTest() {
    std::array<std::future<void>, 2> connected;
    for (size_t rank = 0; rank < 2; ++rank) {
      connected[rank] = std::async(std::launch::async, [this, rank] {
        ranks_[rank].sockets = *ranks_[rank].listener.Connect(
            {ranks_[0].address, ranks_[1].address}, Instant::max());
      });
    }
    for (auto& one : connected) one.get();
  }

  void Serve(size_t rank) {
    Pairs& pairs = ranks_[rank].pairs;
    ranks_[rank].listener.Serve([&](int peer, int socket, const auto& tell) {
      pairs.Take(peer, socket, tell);
    });
  }

  // The reply of a rank's pairs to a connection that the other rank offers.
  Reply GetReply(size_t rank) {
    Reply said = {};
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    ranks_[rank].pairs.Take(1 - static_cast<int>(rank), ends[0],
                            [&](Reply reply) { said = reply; });
    close(ends[1]);
    if (said != Reply::kTaken) close(ends[0]);
    return said;
  }

  std::array<Rank, 2> ranks_{Rank(0), Rank(1)};
};

TEST_F(PairsTest, BothRanksMayOpenAPairAtOnce) {
  Serve(0);
  Serve(1);
  std::vector<std::future<Status>> opened;
  for (size_t rank : {0, 1, 0, 1}) {
    opened.push_back(std::async(std::launch::async, [this, rank] {
      return ranks_[rank].pairs.Open(1 - static_cast<int>(rank));
    }));
  }
  for (auto& one : opened) EXPECT_TRUE(one.get().ok());
  EXPECT_TRUE(ranks_[0].pairs.IsOpen(1));
  EXPECT_TRUE(ranks_[1].pairs.IsOpen(0));
}

TEST_F(PairsTest, AnOpenPairIsNotReplaced) {
  EXPECT_EQ(GetReply(0), Reply::kTaken);
  EXPECT_EQ(GetReply(0), Reply::kRefused);
}

TEST_F(PairsTest, AfterAnAbortThereAreNone) {
  ranks_[0].pairs.Abort();
  EXPECT_EQ(GetReply(0), Reply::kRefused);
  EXPECT_TRUE(IsCancelled(ranks_[0].pairs.Open(1)));
}

// A second Open fails alike; its caller then asks why the peer has gone.
TEST_F(PairsTest, APeerThatHasGoneIsUnavailable) {
  ranks_[1].listener.Stop();
  for (int time = 0; time < 2; ++time) {
    const Status opened = ranks_[0].pairs.Open(1);
    EXPECT_EQ(opened.code(), StatusCode::kUnavailable) << opened;
    EXPECT_EQ(CulpritRank(opened), 1);
  }
}

}  // namespace
}  // namespace muster::dataplane::cpu
