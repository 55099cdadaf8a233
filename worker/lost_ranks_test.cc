#include "worker/lost_ranks.h"

#include <gtest/gtest.h>

#include <chrono>

namespace muster::worker {
namespace {

TEST(LostRanksTest, TheEndDoesNotWaitForACoordinatorThatIsNotThere) {
  const auto start = std::chrono::steady_clock::now();
  {
    // Nobody listens at port 1.
    const LostRanks lost_ranks({"127.0.0.1", 1, "job"}, [] {});
  }
  // How long it tries to connect.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

}  // namespace
}  // namespace muster::worker
