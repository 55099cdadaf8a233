#include "client/parallel/data/bucket_assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "muster/dataplane/tensor.h"

namespace muster::internal {
namespace {

using Buckets = std::vector<std::vector<size_t>>;
using dataplane::DataType;
using dataplane::Tensor;

Tensor OfType(DataType type, int64_t count) {
  static double memory;
  return {&memory, type, {count}};
}

Tensor Floats(int64_t count) { return OfType(DataType::kFloat32, count); }

TEST(BucketAssignmentTest, ABucketIsClosedWhenItReachesItsLimit) {
  const std::vector<Tensor> gradients = {Floats(10), Floats(10), Floats(10),
                                         Floats(10), Floats(10)};
  EXPECT_EQ(AssignBuckets(gradients, std::vector<size_t>{4, 3, 2, 1, 0},
                          {.first_bytes = 40, .bytes = 80}),
            (Buckets{{4}, {3, 2}, {1, 0}}));
  EXPECT_EQ(AssignBuckets(gradients, std::vector<size_t>{4, 3, 2, 1, 0},
                          {.first_bytes = 41, .bytes = 81}),
            (Buckets{{4, 3}, {2, 1, 0}}));
}

TEST(BucketAssignmentTest, AGradientLargerThanTheLimitClosesItsBucket) {
  EXPECT_EQ(AssignBuckets(
                std::vector<Tensor>{Floats(1), Floats(1000), Floats(1)},
                std::vector<size_t>{0, 1, 2}, {.first_bytes = 8, .bytes = 8}),
            (Buckets{{0, 1}, {2}}));
}

TEST(BucketAssignmentTest, EachTypeHasBucketsOfItsOwnWithASmallFirstOne) {
  const auto bf16 = [](int64_t count) {
    return OfType(DataType::kBfloat16, count);
  };
  const std::vector<Tensor> gradients = {Floats(1), bf16(2), Floats(1),
                                         bf16(2),   bf16(2), Floats(1)};
  EXPECT_EQ(AssignBuckets(gradients, std::vector<size_t>{0, 1, 2, 3, 4, 5},
                          {.first_bytes = 4, .bytes = 8}),
            (Buckets{{0}, {1}, {3, 4}, {2, 5}}));
}

TEST(BucketAssignmentTest, AnOpenBucketComesWhenItsLastGradientDoes) {
  // The bfloat16 bucket never fills, but is complete before the last float32.
  const std::vector<Tensor> gradients = {OfType(DataType::kBfloat16, 1),
                                         Floats(10), Floats(10)};
  EXPECT_EQ(AssignBuckets(gradients, std::vector<size_t>{1, 0, 2},
                          {.first_bytes = 80, .bytes = 80}),
            (Buckets{{0}, {1, 2}}));
}

TEST(BucketAssignmentTest, RandomGradientsAreInOneBucketOfTheirTypeEach) {
  std::mt19937 random(49);
  for (int round = 0; round < 200; ++round) {
    std::vector<Tensor> gradients;
    const size_t count = 1 + random() % 30;
    for (size_t i = 0; i < count; ++i) {
      gradients.push_back(
          OfType(random() % 2 == 0 ? DataType::kFloat32 : DataType::kFloat64,
                 1 + random() % 50));
    }
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    const BucketLimits limits = {.first_bytes = 1 + random() % 200,
                                 .bytes = 1 + random() % 400};
    const auto position = [&](size_t index) {
      return std::find(order.begin(), order.end(), index) - order.begin();
    };
    std::vector<size_t> seen;
    std::ptrdiff_t last = -1;
    std::map<DataType, size_t> of_type;
    for (const auto& bucket : AssignBuckets(gradients, order, limits)) {
      ASSERT_FALSE(bucket.empty());
      const DataType type = gradients[bucket[0]].data_type();
      size_t bytes = 0;
      for (size_t i = 0; i < bucket.size(); ++i) {
        EXPECT_EQ(gradients[bucket[i]].data_type(), type);
        if (i > 0) {
          EXPECT_LT(position(bucket[i - 1]), position(bucket[i]));
        }
        if (i + 1 < bucket.size()) bytes += gradients[bucket[i]].bytes();
        seen.push_back(bucket[i]);
      }
      // Without its last gradient it was not full.
      EXPECT_LT(bytes,
                of_type[type]++ == 0 ? limits.first_bytes : limits.bytes);
      EXPECT_LT(last, position(bucket.back()));
      last = position(bucket.back());
    }
    std::sort(seen.begin(), seen.end());
    std::sort(order.begin(), order.end());
    EXPECT_EQ(seen, order);
  }
}

}  // namespace
}  // namespace muster::internal
