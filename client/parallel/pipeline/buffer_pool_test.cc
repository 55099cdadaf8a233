#include "client/parallel/pipeline/buffer_pool.h"

#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"

namespace muster::internal {
namespace {

TEST(BufferPoolTest, ABufferIsUsedAgainWhenItsLastReferenceIsGone) {
  BufferPool pool;
  auto first = pool.Take(100);
  auto second = pool.Take(100);
  const std::byte* const address = first.get();
  EXPECT_NE(second.get(), address);
  auto shared = first;
  first = nullptr;
  EXPECT_NE(pool.Take(100).get(), address);
  shared = nullptr;
  auto again = pool.Take(100);
  EXPECT_EQ(again.get(), address);
  EXPECT_NE(pool.Take(200).get(), second.get());
}

TEST(BufferPoolTest, BuffersAreAligned) {
  BufferPool pool;
  for (const size_t bytes : {1, 65, 4096}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.Take(bytes).get()) % 64, 0U);
  }
}

}  // namespace
}  // namespace muster::internal
