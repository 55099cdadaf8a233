#include "client/parallel/shard/counted_memory.h"

#include <string>
#include <utility>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::Each;

TEST(CountedMemoryTest, CountsWhatIsAllocatedAndThePeak) {
  MemoryCounter counter;
  {
    CountedMemory shards(counter, &MemoryStats::shards, 100);
    CountedMemory values(counter, &MemoryStats::values, 30);
    CountedMemory moved = std::move(values);
    EXPECT_TRUE(values.empty());  // NOLINT(bugprone-use-after-move)
    moved.Free();
    moved.Free();
    EXPECT_EQ(counter.stats().values.current, 0);
    values = CountedMemory(counter, &MemoryStats::values, 20);
    EXPECT_EQ(counter.stats().total.current, 120);
  }
  EXPECT_EQ(counter.stats().total.current, 0);
  EXPECT_EQ(counter.stats().total.peak, 130);
  EXPECT_EQ(counter.stats().values.peak, 30);
  EXPECT_EQ(counter.stats().shards.peak, 100);
}

TEST(BufferPoolTest, KeepsBuffersThatAreSymmetricWhereTheGroupHasThat) {
  for (const std::string backend : {"gloo", "shm"}) {
    testing::LocalGroups groups(2, std::chrono::seconds(60), backend);
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int) {
      MemoryCounter counter;
      CountedBufferPool pool(group, counter, &MemoryStats::reduce_buffers,
                             1000);
      CountedMemory one = pool.Take();
      EXPECT_EQ(one.is_symmetric(), backend == "shm");
      const CountedMemory other = pool.Take();
      EXPECT_NE(one.data(), other.data());
      const std::byte* const data = one.data();
      pool.Give(std::move(one));
      EXPECT_EQ(pool.Take().data(), data);
      EXPECT_EQ(counter.stats().reduce_buffers.peak, 2000);
    }),
                Each(""));
  }
}

}  // namespace
}  // namespace muster::internal
