// The reference accepts 8 and 16 bit numbers that were rounded at each rank,
// and refuses results in which a rank is missing.

#include "dataplane/testing/reference.h"

#include <string>
#include <vector>

#include "Eigen/Core"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

constexpr size_t kCount = 4096;

// The reduction over the first `ranks` of `world_size` ranks, each of which
// rounds what it passes on.
template <typename T>
std::vector<T> InSteps(ReduceOp op, int world_size, int ranks) {
  std::vector<T> results(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    for (int rank = 0; rank < ranks; ++rank) {
      auto own = static_cast<float>(InputElement<T>(op, world_size, rank, i));
      float factor = 1;
      if (op == ReduceOp::kPremulSum) {
        factor = static_cast<float>(GetFactor(rank));
      } else if (op == ReduceOp::kAvg) {
        factor = static_cast<float>(
            static_cast<T>(1 / static_cast<float>(world_size)));
      }
      own = static_cast<float>(static_cast<T>(own * factor));
      const float before = rank == 0 ? own : static_cast<float>(results[i]);
      const float both = rank == 0
                             ? own
                             : static_cast<float>(ExpectedPair<long double>(
                                   op, static_cast<long double>(before),
                                   static_cast<long double>(own)));
      results[i] = static_cast<T>(both);
    }
  }
  return results;
}

template <typename T>
class NarrowTest : public ::testing::Test {};
using NarrowTypes =
    ::testing::Types<Eigen::half, Eigen::bfloat16, Float8E4m3fn, Float8E5m2>;
TYPED_TEST_SUITE(NarrowTest, NarrowTypes);

TYPED_TEST(NarrowTest, WhatIsRoundedAtEachRankIsRight) {
  for (const int world_size : {1, 2, 3, 4, 8}) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum,
          ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      EXPECT_EQ(FirstWrong(InSteps<TypeParam>(op, world_size, world_size), op,
                           world_size, 0, Rounding::kAtEachRank),
                "")
          << ReduceOpName(op) << " of " << world_size;
    }
  }
}

TYPED_TEST(NarrowTest, ASumThatARankIsMissingOfIsWrong) {
  for (const int world_size : {2, 3, 4, 8}) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
      EXPECT_NE(FirstWrong(InSteps<TypeParam>(op, world_size, world_size - 1),
                           op, world_size, 0, Rounding::kAtEachRank),
                "")
          << ReduceOpName(op) << " of " << world_size;
    }
  }
}

// With two ranks there is one sum, which is rounded once.
TYPED_TEST(NarrowTest, ASumOfTwoIsTheNearestNumber) {
  auto sums = InSteps<TypeParam>(ReduceOp::kSum, 2, 2);
  const auto one = static_cast<float>(sums[7]);
  sums[7] = static_cast<TypeParam>(one * (1 + 2 * GetUnit<TypeParam>()));
  EXPECT_NE(FirstWrong(sums, ReduceOp::kSum, 2, 0, Rounding::kAtEachRank), "");
}

}  // namespace
}  // namespace muster::dataplane::testing
