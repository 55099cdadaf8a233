#include "client/control/backoff.h"

#include <chrono>
#include <set>

#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

TEST(BackoffTest, GrowsToHalfASecondAndNoFurther) {
  Backoff backoff(1);
  EXPECT_LE(backoff.Next(), milliseconds(6));
  milliseconds total{0};
  int attempts = 1;
  for (; attempts < 100 && total < milliseconds(10'000); ++attempts) {
    const milliseconds delay = backoff.Next();
    EXPECT_LE(delay, milliseconds(500));
    total += delay;
  }
  // Without growth, ten seconds would be thousands of attempts.
  EXPECT_LT(attempts, 50);
  EXPECT_GE(backoff.Next(), milliseconds(250));
  backoff.Reset();
  EXPECT_LE(backoff.Next(), milliseconds(6));
}

TEST(BackoffTest, SpreadsThoseThatStartTogether) {
  std::set<milliseconds> delays;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Backoff backoff(seed);
    for (int i = 0; i < 20; ++i) backoff.Next();
    delays.insert(backoff.Next());
  }
  EXPECT_GT(delays.size(), 50);
}

}  // namespace
}  // namespace muster::internal
