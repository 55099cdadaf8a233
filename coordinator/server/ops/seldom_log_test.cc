#include "coordinator/server/ops/seldom_log.h"

#include <chrono>

#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using std::chrono::seconds;

TEST(SeldomLogTest, TheFirstIsToldAtOnceTheOthersWhenItIsTime) {
  SeldomLog log("handshake_failed", seconds(10));
  const core::Instant start = std::chrono::steady_clock::now();
  EXPECT_EQ(log.LineAt(start), "");
  EXPECT_EQ(log.LineFor("last=a", start), "handshake_failed: count=1 last=a");
  EXPECT_EQ(log.LineFor("last=b", start + seconds(1)), "");
  EXPECT_EQ(log.LineFor("last=c", start + seconds(2)), "");
  EXPECT_EQ(log.LineAt(start + seconds(9)), "");
  // The pending events are logged although no new one comes.
  EXPECT_EQ(log.LineAt(start + seconds(10)),
            "handshake_failed: count=2 last=c");
  EXPECT_EQ(log.LineAt(start + seconds(30)), "");
  EXPECT_EQ(log.LineFor("last=d", start + seconds(31)),
            "handshake_failed: count=1 last=d");
}

}  // namespace
}  // namespace muster::coordinator
