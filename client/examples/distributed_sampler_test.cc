#include "client/examples/distributed_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace muster::examples {
namespace {

using ::testing::HasSubstr;

// Returns the items of a step over all ranks, sorted.
std::vector<size_t> GlobalBatch(int world_size, int epoch, size_t step) {
  std::vector<size_t> all;
  for (int rank = 0; rank < world_size; ++rank) {
    DistributedSampler sampler(1000, 24, 7, rank, world_size);
    sampler.SetEpoch(epoch);
    const std::vector<size_t> batch = sampler.Batch(step);
    const size_t fair = 24u / static_cast<size_t>(world_size);
    EXPECT_GE(batch.size(), fair);
    EXPECT_LE(batch.size(), fair + 1);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(DistributedSamplerTest, ItemsOfAStepDoNotDependOnTheWorldSize) {
  for (const int epoch : {0, 3}) {
    for (const size_t step : {0, 40}) {
      const std::vector<size_t> alone = GlobalBatch(1, epoch, step);
      for (const int world_size : {2, 3, 4, 7, 24, 25}) {
        EXPECT_EQ(GlobalBatch(world_size, epoch, step), alone) << world_size;
      }
    }
  }
}

TEST(DistributedSamplerTest, AnEpochUsesEveryItemAtMostOnce) {
  const DistributedSampler sampler(1000, 24, 7, 0, 1);
  EXPECT_EQ(sampler.steps_per_epoch(), 41u);
  std::vector<int> uses(1000);
  for (size_t step = 0; step < sampler.steps_per_epoch(); ++step) {
    for (const size_t item : sampler.Batch(step)) ++uses.at(item);
  }
  EXPECT_EQ(std::count(uses.begin(), uses.end(), 1), 41 * 24);
  EXPECT_EQ(std::count(uses.begin(), uses.end(), 0), 1000 - 41 * 24);
}

TEST(DistributedSamplerTest, EpochsAndSeedsDiffer) {
  EXPECT_NE(GlobalBatch(1, 0, 0), GlobalBatch(1, 1, 0));
  EXPECT_NE(DistributedSampler(1000, 24, 7, 0, 1).Batch(0),
            DistributedSampler(1000, 24, 8, 0, 1).Batch(0));
}

TEST(DistributedSamplerTest, WrongBatchIsAnErrorThatSaysWhatFits) {
  for (const size_t global_batch : {0, 1001}) {
    try {
      const DistributedSampler sampler(1000, global_batch, 7, 0, 4);
      ADD_FAILURE() << global_batch;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("must be 1 to 1000 (the size of the data set), "
                            "got " +
                            std::to_string(global_batch)));
    }
  }
}

}  // namespace
}  // namespace muster::examples
