// Counts all memory of the process: it has its own operator new.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "client/parallel/data/buckets.h"
#include "client/testing/local_groups.h"

namespace {

std::atomic<int64_t> in_use{0};
std::atomic<int64_t> most_in_use{0};

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  const auto size = static_cast<int64_t>(malloc_usable_size(memory));
  const int64_t now = in_use.fetch_add(size) + size;
  int64_t most = most_in_use.load();
  while (now > most && !most_in_use.compare_exchange_weak(most, now)) {
  }
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  in_use -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace muster::internal {
namespace {

constexpr size_t kGradients = 16;
constexpr int64_t kBytes = int64_t{4} << 20;

// Each gradient has a bucket of its own. Builds them anew and returns how much
// more memory was in use at some time.
int64_t MeasureRebuild(const std::vector<size_t>& order, bool keeps) {
  muster::testing::LocalGroups groups(1);
  std::vector<float> values(kBytes / sizeof(float));
  const std::vector<Tensor> tensors(kGradients, values);
  Buckets buckets(groups.at(0), tensors, {.first_bytes = 1, .bytes = 1});
  std::vector<size_t> first;
  for (size_t i = 0; i < kGradients; ++i) first.push_back(i);
  EXPECT_TRUE(buckets.Build(first, [](size_t) { return false; }));
  for (size_t i = 0; i < kGradients; ++i) {
    *static_cast<float*>(buckets.View(i).data()) = static_cast<float>(i);
  }
  const int64_t before = in_use;
  most_in_use = before;
  EXPECT_TRUE(buckets.Build(order, [&](size_t) { return keeps; }));
  const int64_t more = most_in_use - before;
  for (size_t i = 0; i < kGradients; ++i) {
    EXPECT_EQ(buckets.all()[i].gradients.parameters,
              std::vector<size_t>{order[i]});
    if (!keeps) continue;
    EXPECT_EQ(*static_cast<float*>(buckets.View(i).data()), i);
  }
  EXPECT_LT(std::abs(in_use - before), kBytes);
  return more;
}

TEST(BucketsMemoryTest, ARebuildTakesOneBucketMore) {
  // Neighbours change places.
  std::vector<size_t> order;
  for (size_t i = 0; i < kGradients; i += 2) {
    order.push_back(i + 1);
    order.push_back(i);
  }
  EXPECT_LT(MeasureRebuild(order, /*keeps=*/true), 2 * kBytes);
  // Old buckets are freed before if nothing of them is kept.
  std::reverse(order.begin(), order.end());
  EXPECT_LT(MeasureRebuild(order, /*keeps=*/false), kBytes);
}

}  // namespace
}  // namespace muster::internal
