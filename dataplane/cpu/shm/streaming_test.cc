#include "dataplane/cpu/shm/streaming.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

// These tests do not show whether copies go past the caches.

std::vector<uint8_t> Numbers(size_t count) {
  std::vector<uint8_t> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<uint8_t>(i % 251);
  return numbers;
}

// Bytes in front of and behind the target do not change, at any alignment.
TEST(StreamingTest, CopiesWhatItShallAndNothingElse) {
  const std::vector<uint8_t> source = Numbers(2000);
  for (const size_t bytes : {0, 1, 63, 64, 65, 127, 128, 200, 1000}) {
    for (size_t to = 0; to < 70; ++to) {
      for (const size_t from : {0, 1, 17, 64}) {
        std::vector<uint8_t> expected(1200, 255);
        std::copy_n(source.begin() + static_cast<ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<ptrdiff_t>(to));
        std::vector<uint8_t> target(1200, 255);
        CopyPastCaches(target.data() + to, source.data() + from, bytes);
        ASSERT_EQ(target, expected)
            << bytes << " to " << to << " from " << from;
      }
    }
  }
}

TEST(StreamingTest, WhatIsShortIsCopiedAndNothingElse) {
  const std::vector<uint8_t> source = Numbers(200);
  for (size_t bytes = 0; bytes <= 80; ++bytes) {
    std::vector<uint8_t> expected(120, 255);
    std::copy_n(source.begin() + 3, bytes, expected.begin() + 5);
    std::vector<uint8_t> target(120, 255);
    CopyShort(target.data() + 5, source.data() + 3, bytes);
    ASSERT_EQ(target, expected) << bytes;
  }
}

TEST(StreamingTest, LargeAndSmallCollectivesCopyTheSame) {
  const std::vector<uint8_t> source = Numbers(5000);
  for (const size_t all : {size_t{5000}, kPastCachesBytes}) {
    std::vector<uint8_t> target(5000);
    CopyOut(target.data(), source.data(), target.size(), all);
    EXPECT_EQ(target, source);
    // A copy to itself changes nothing.
    CopyOut(target.data(), target.data(), target.size(), all);
    EXPECT_EQ(target, source);
    CopyOut(nullptr, nullptr, 0, all);
  }
}

}  // namespace
}  // namespace muster::dataplane::shm
