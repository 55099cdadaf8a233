#include "dataplane/cpu/transport/tcp_p2p_connections.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cpu/transport/interface.h"
#include "dataplane/cpu/transport/listener.h"
#include "dataplane/culprit.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::cpu {
namespace {

using Reply = Listener::Reply;

// Two ranks in one process.
class TcpP2pConnectionsTest : public ::testing::Test {
 protected:
  struct Came {
    Message message;
    std::string payload;
  };

  struct Rank {
    Rank(int rank, std::chrono::milliseconds offer_timeout)
        : listener(rank, 2),
          connections(
              rank, 2, listener,
              [this](int peer, const Status& failure,
                     Instant since) -> std::optional<Status> {
                if (!knows_goodbyes) return std::nullopt;
                if (since == Instant::max() && !peer_is_gone) {
                  return std::nullopt;
                }
                if (!failure.ok()) return failure;
                return UnavailableError(
                    absl::StrCat("rank ", peer, " is gone"));
              },
              offer_timeout) {
      address =
          *listener.Listen(*ChooseAddress({.local_address = "127.0.0.1"}));
      connections.SetCallbacks(
          {.received =
               [this](int, const Message& message,
                      std::span<const std::byte> payload) {
                 MutexLock lock(mutex);
                 came.push_back({message,
                                 {reinterpret_cast<const char*>(payload.data()),
                                  payload.size()}});
                 changed.NotifyAll();
               },
           .find_memory = [this](int, const Message&, size_t bytes) -> void* {
             if (bytes == tensor.size()) return tensor.data();
             return invalid_memory;
           },
           .sent =
               [this](int, uint64_t ticket) {
                 MutexLock lock(mutex);
                 sent.push_back(ticket);
                 changed.NotifyAll();
               },
           .ended =
               [this](int, const Status& status) {
                 MutexLock lock(mutex);
                 ended = status;
                 changed.NotifyAll();
               }});
    }
    ~Rank() {
      listener.Stop();
      connections.Join();
      for (const auto* list : {&sockets.data, &sockets.control}) {
        for (const int socket : *list) {
          if (socket >= 0) close(socket);
        }
      }
    }

    Came AwaitMessage(size_t number) {
      MutexLock lock(mutex);
      while (came.size() <= number) changed.Wait(mutex);
      return came[number];
    }
    Status GetEnd() {
      MutexLock lock(mutex);
      return ended;
    }
    Status AwaitEnd() {
      MutexLock lock(mutex);
      while (ended.ok()) changed.Wait(mutex);
      return ended;
    }
    std::vector<uint64_t> AwaitSent(size_t count) {
      MutexLock lock(mutex);
      while (sent.size() < count) changed.Wait(mutex);
      return sent;
    }

    Mutex mutex;
    CondVar changed;
    std::vector<Came> came MUSTER_GUARDED_BY(mutex);
    std::vector<uint64_t> sent MUSTER_GUARDED_BY(mutex);
    Status ended MUSTER_GUARDED_BY(mutex);
    std::string tensor;
    void* invalid_memory = nullptr;
    std::atomic<bool> knows_goodbyes{true};
    std::atomic<bool> peer_is_gone{false};

    Listener listener;
    TcpP2pConnections connections;
    RankAddress address;
    Listener::Sockets sockets;
  };

  explicit TcpP2pConnectionsTest(std::chrono::milliseconds offer_timeout =
                                     TcpP2pConnections::kOfferTimeout)
      : ranks_{Rank(0, offer_timeout), Rank(1, offer_timeout)} {
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
    TcpP2pConnections& connections = ranks_[rank].connections;
    ranks_[rank].listener.Serve([&](int peer, int socket, const auto& tell) {
      connections.Take(peer, socket, tell);
    });
  }

  // Opens both ends at once.
  void OpenBoth() {
    Serve(0);
    Serve(1);
    ranks_[0].connections.Open(1);
    ranks_[1].connections.Open(0);
  }

  bool Post(int rank, const std::string& payload, uint64_t ticket = 0) {
    Message message;
    message.type = Message::kEager;
    message.count = payload.size();
    return ranks_[rank].connections.Post(1 - rank, message, payload.data(),
                                         payload.size(), ticket);
  }

  void PostTensor(int rank, const std::string& tensor) {
    Message message;
    message.type = Message::kTensor;
    ranks_[rank].connections.PostTensor(1 - rank, message, tensor.data(),
                                        tensor.size(), /*ticket=*/0);
  }

  // The reply of a rank to a connection that the other rank offers.
  Reply GetReply(size_t rank) {
    Reply said = {};
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    ranks_[rank].connections.Take(1 - static_cast<int>(rank), ends[0],
                                  [&](Reply reply) { said = reply; });
    close(ends[1]);
    if (said != Reply::kTaken) close(ends[0]);
    return said;
  }

  // Rank 1 waits for a connection that rank 0 has announced and never makes.
  void AwaitRank0() {
    Serve(0);
    // Rank 1 does not answer this offer.
    ranks_[0].connections.Open(1);
    ranks_[1].connections.Open(0);
  }

  std::array<Rank, 2> ranks_;
};

class ImpatientTcpP2pConnectionsTest : public TcpP2pConnectionsTest {
 protected:
  ImpatientTcpP2pConnectionsTest()
      : TcpP2pConnectionsTest(std::chrono::milliseconds(100)) {}
};

TEST_F(TcpP2pConnectionsTest, BothRanksMayOpenAtOnce) {
  OpenBoth();
  Post(0, "zero");
  Post(1, "one");
  EXPECT_EQ(ranks_[0].AwaitMessage(0).payload, "one");
  EXPECT_EQ(ranks_[1].AwaitMessage(0).payload, "zero");
}

TEST_F(TcpP2pConnectionsTest, APeerThatLeavesBeforeItConnectsIsGone) {
  AwaitRank0();
  Post(1, "never");
  ranks_[1].peer_is_gone = true;
  EXPECT_EQ(ranks_[1].AwaitEnd(), UnavailableError("rank 0 is gone"));
}

TEST_F(ImpatientTcpP2pConnectionsTest, APeerThatDoesNotConnectIsNamed) {
  AwaitRank0();
  Status late = DeadlineExceededError(
      "rank 0 announced a connection for sends and receives and did not make "
      "it within 100ms");
  SetCulpritRank(late, 0);
  EXPECT_EQ(ranks_[1].AwaitEnd(), late);
}

TEST_F(TcpP2pConnectionsTest, MessagesPostedBeforeThePeerOpensArrive) {
  Serve(1);
  ranks_[0].connections.Open(1);
  Post(0, "early", /*ticket=*/7);
  ranks_[0].AwaitSent(1);
  ranks_[1].connections.Open(0);
  EXPECT_EQ(ranks_[1].AwaitMessage(0).payload, "early");
  // On an open connection a message leaves at once.
  EXPECT_TRUE(Post(0, "late", /*ticket=*/8));
  EXPECT_EQ(ranks_[1].AwaitMessage(1).payload, "late");
  EXPECT_EQ(ranks_[0].AwaitSent(1), std::vector<uint64_t>{7});
}

TEST_F(TcpP2pConnectionsTest, MessagesOfAllSizesKeepTheirOrder) {
  OpenBoth();
  const std::string tensor(20 << 20, 't');
  ranks_[0].tensor.resize(tensor.size());
  ranks_[1].tensor.resize(tensor.size());
  size_t number = 0;
  for (int rank : {0, 1}) {
    for (size_t bytes : {0, 1, 4096, 32 << 10, 32 << 10}) {
      Post(rank, std::string(bytes, 'a'), ++number);
    }
    PostTensor(rank, tensor);
    Post(rank, "last");
  }
  for (Rank& rank : ranks_) {
    EXPECT_EQ(rank.AwaitMessage(6).payload, "last");
    EXPECT_EQ(rank.AwaitMessage(3).payload, std::string(32 << 10, 'a'));
    EXPECT_EQ(rank.AwaitMessage(5).message.type, Message::kTensor);
    EXPECT_EQ(rank.tensor, tensor);
  }
}

TEST_F(TcpP2pConnectionsTest, AnOpenConnectionIsNotReplaced) {
  EXPECT_EQ(GetReply(0), Reply::kTaken);
  EXPECT_EQ(GetReply(0), Reply::kRefused);
}

TEST_F(TcpP2pConnectionsTest, AfterAnAbortThereAreNone) {
  ranks_[0].connections.Abort();
  EXPECT_EQ(GetReply(0), Reply::kRefused);
  EXPECT_FALSE(Post(0, "late"));
}

TEST_F(TcpP2pConnectionsTest, APeerThatDoesNotListenIsUnavailable) {
  ranks_[1].listener.Stop();
  ranks_[0].connections.Open(1);
  const Status ended = ranks_[0].AwaitEnd();
  EXPECT_EQ(ended.code(), StatusCode::kUnavailable) << ended;
  EXPECT_EQ(CulpritRank(ended), 1);
}

TEST_F(TcpP2pConnectionsTest, WhatAPeerSentBeforeItWentArrives) {
  OpenBoth();
  Post(1, "first");
  ranks_[0].AwaitMessage(0);
  size_t queued = 0;
  for (int i = 0; i < 6; ++i) {
    if (!Post(1, std::string(32 << 10, 'x'), /*ticket=*/1)) ++queued;
  }
  ranks_[1].AwaitSent(queued);
  // Unread bytes at the peer do not keep its own from arriving.
  ranks_[1].connections.Join();
  EXPECT_TRUE(Post(0, "unread"));
  ranks_[1].connections.Close(Instant::min());
  EXPECT_EQ(ranks_[0].AwaitEnd(), UnavailableError("rank 1 is gone"));
  EXPECT_EQ(ranks_[0].AwaitMessage(6).payload, std::string(32 << 10, 'x'));
}

TEST_F(TcpP2pConnectionsTest, MemoryThatIsNotThereIsNamed) {
  OpenBoth();
  Message message;
  message.type = Message::kTensor;
  ranks_[0].connections.PostTensor(1, message, nullptr, 1 << 20,
                                   /*ticket=*/0);
  const Status ended = ranks_[0].AwaitEnd();
  EXPECT_EQ(ended.code(), StatusCode::kInvalidArgument) << ended;
  EXPECT_EQ(CulpritRank(ended), 0);
}

TEST_F(TcpP2pConnectionsTest, MemoryOfAReceiverThatIsNotThereIsNamed) {
  OpenBoth();
  // No page is mapped there.
  ranks_[1].invalid_memory = reinterpret_cast<void*>(64);  // NOLINT
  // Rank 0 may still send it when this test has its result.
  static const std::string tensor(64, 't');
  PostTensor(0, tensor);
  const Status ended = ranks_[1].AwaitEnd();
  EXPECT_EQ(ended.code(), StatusCode::kInvalidArgument) << ended;
  EXPECT_EQ(CulpritRank(ended), 1);
}

TEST_F(TcpP2pConnectionsTest, OtherWorkGoesOnUntilTheEndOfAPeerIsExplained) {
  OpenBoth();
  Post(1, "first");
  ranks_[0].AwaitMessage(0);
  ranks_[0].knows_goodbyes = false;
  ranks_[1].connections.Join();
  ranks_[1].connections.Close(Instant::min());
  std::promise<void> called;
  ranks_[0].connections.Run([&, calls = 0]() mutable {
    if (++calls < 1000) return false;
    called.set_value();
    return true;
  });
  called.get_future().wait();
  EXPECT_EQ(ranks_[0].GetEnd(), OkStatus());
  ranks_[0].knows_goodbyes = true;
  EXPECT_EQ(ranks_[0].AwaitEnd(), UnavailableError("rank 1 is gone"));
}

TEST_F(TcpP2pConnectionsTest, PeersThatHaveNotOpenedTakeMessages) {
  Serve(1);
  ranks_[0].connections.Open(1);
  size_t queued = 0;
  for (int i = 0; i < 64; ++i) {
    if (!Post(0, std::string(32 << 10, 'x'), /*ticket=*/1)) ++queued;
  }
  ranks_[0].AwaitSent(queued);
  ranks_[0].connections.Join();
  ranks_[0].connections.Close(Instant::max());
  EXPECT_EQ(ranks_[1].AwaitMessage(63).payload, std::string(32 << 10, 'x'));
}

TEST_F(TcpP2pConnectionsTest, AStepIsCalledUntilItIsOver) {
  std::promise<void> over;
  int calls = 0;
  ranks_[0].connections.Run([&] {
    if (++calls < 3) return false;
    over.set_value();
    return true;
  });
  over.get_future().wait();
  ranks_[0].connections.Join();
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace muster::dataplane::cpu
