#include "dataplane/cpu/transport/control_connections.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>

#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

constexpr std::chrono::seconds kPatience{10};

GoodbyeBytes Goodbye(const char* text) {
  return EncodeGoodbye(AbortedError(text));
}

// Two ranks in one process.
class ControlConnectionsTest : public ::testing::Test {
 protected:
  ControlConnectionsTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    EXPECT_EQ(rank0_.Take({-1, ends[0]}), OkStatus());
    EXPECT_EQ(rank1_.Take({ends[1], -1}), OkStatus());
    rank1s_end_ = ends[1];
  }

  ControlConnections rank0_{/*world_size=*/2};
  ControlConnections rank1_{/*world_size=*/2};
  int rank1s_end_ = -1;
};

TEST_F(ControlConnectionsTest, GoodbyeIsSeenAndStays) {
  EXPECT_FALSE(rank0_.Look(1).has_value());
  EXPECT_FALSE(rank0_.AwaitEnd(1, Clock::now()).has_value());
  rank1_.Close(Goodbye("on purpose"));
  for (int i = 0; i < 2; ++i) {
    const auto end = rank0_.AwaitEnd(1, Clock::now() + kPatience);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->goodbye, Goodbye("on purpose"));
  }
  // False for connections that were closed here, and for this rank itself.
  EXPECT_FALSE(rank1_.Look(0).has_value());
  EXPECT_FALSE(rank0_.Look(0).has_value());
}

TEST_F(ControlConnectionsTest, GoodbyeThatComesInPartsIsAwaited) {
  const GoodbyeBytes bytes = Goodbye("on purpose");
  EXPECT_EQ(send(rank1s_end_, bytes.data(), 100, 0), 100);
  EXPECT_FALSE(rank0_.Look(1).has_value());
  auto end = std::async(std::launch::async, [&] {
    return rank0_.AwaitEnd(1, Clock::now() + kPatience);
  });
  EXPECT_EQ(send(rank1s_end_, bytes.data() + 100, bytes.size() - 100, 0),
            static_cast<ssize_t>(bytes.size() - 100));
  EXPECT_EQ(end.get()->goodbye, bytes);
}

TEST_F(ControlConnectionsTest, EndWithoutOneIsSeen) {
  EXPECT_EQ(shutdown(rank1s_end_, SHUT_RDWR), 0);
  const auto end = rank0_.Look(1);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->goodbye, GoodbyeBytes());
  EXPECT_EQ(end->text, "connection closed");
}

TEST_F(ControlConnectionsTest, WakeEndsTheWait) {
  auto end = std::async(std::launch::async,
                        [&] { return rank0_.AwaitEnd(1, Instant::max()); });
  rank0_.Wake();
  EXPECT_FALSE(end.get().has_value());
}

TEST_F(ControlConnectionsTest, ClosingWaitsForNobody) {
  rank0_.Close(Goodbye("first"));
  rank1_.Close(Goodbye("second"));
  EXPECT_FALSE(rank0_.Look(1).has_value());
}

}  // namespace
}  // namespace muster::dataplane::cpu
