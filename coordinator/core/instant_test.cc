#include "coordinator/core/instant.h"

#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using namespace std::chrono_literals;  // NOLINT(build/namespaces)

TEST(InstantTest, DeadlinesDoNotOverflow) {
  const Instant now{1000s};
  EXPECT_EQ(DeadlineAfter(now, 5s), now + 5s);
  EXPECT_EQ(DeadlineAfter(now, -5s), now);
  EXPECT_EQ(DeadlineAfter(now, Duration::max()), Instant::max());
}

TEST(InstantTest, DurationsHaveTheUnitThatPeopleRead) {
  EXPECT_EQ(FormatDuration(0s), "0ms");
  EXPECT_EQ(FormatDuration(100ms), "100ms");
  EXPECT_EQ(FormatDuration(999999us), "999ms");
  EXPECT_EQ(FormatDuration(1s), "1s");
  EXPECT_EQ(FormatDuration(11340ms), "11.3s");
  EXPECT_EQ(FormatDuration(30min), "1800s");
}

TEST(InstantTest, ASumStopsAtTheEndsOfTheRange) {
  EXPECT_EQ(SaturatingSum(1s, 2s), 3s);
  EXPECT_EQ(SaturatingSum(Duration::max(), 1ns), Duration::max());
  EXPECT_EQ(SaturatingSum(1ns, Duration::max()), Duration::max());
  EXPECT_EQ(SaturatingSum(Duration::min(), -1ns), Duration::min());
  EXPECT_EQ(SaturatingSum(Duration::max(), Duration::min()), -1ns);
}

}  // namespace
}  // namespace muster::coordinator::core
