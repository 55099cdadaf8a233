#include "client/parallel/dtensor/tensor_memory.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;

TEST(TensorMemoryTest, PartsThatNeedNoCopyAreFound) {
  const ShardBox whole = {.offsets = {0, 4, 0}, .lengths = {2, 3, 5}};
  const auto find = [&](const std::vector<int64_t>& offsets,
                        const std::vector<int64_t>& lengths) {
    return FindContiguous(whole, {.offsets = offsets, .lengths = lengths});
  };
  EXPECT_EQ(find({0, 4, 0}, {2, 3, 5}), 0);
  EXPECT_EQ(find({1, 4, 0}, {1, 3, 5}), 15);
  EXPECT_EQ(find({1, 5, 0}, {1, 2, 5}), 20);
  EXPECT_EQ(find({1, 6, 2}, {1, 1, 3}), 27);
  EXPECT_EQ(find({0, 5, 0}, {2, 2, 5}), std::nullopt);
  EXPECT_EQ(find({0, 4, 1}, {1, 2, 4}), std::nullopt);
  EXPECT_EQ(find({0, 7, 0}, {2, 0, 5}), 0);
}

TEST(TensorMemoryTest, APartIsCopiedFromBoxToBox) {
  // The middle of 4 x 4 into the last columns of 2 x 3.
  std::vector<int16_t> from(16);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int16_t>(i);
  std::vector<int16_t> to(6, -1);
  CopyBox(from.data(), {.offsets = {0, 0}, .lengths = {4, 4}}, to.data(),
          {.offsets = {1, 0}, .lengths = {2, 3}},
          {.offsets = {1, 1}, .lengths = {2, 2}}, sizeof(int16_t));
  EXPECT_THAT(to, ElementsAre(-1, 5, 6, -1, 9, 10));
}

TEST(TensorMemoryTest, NarrowFloatsAreNumbers) {
  // 1, -2, 0.5, infinity.
  std::vector<uint16_t> half = {0x3c00, 0xc000, 0x3800, 0x7c00};
  std::vector<double> doubles(4);
  ToDoubles(DataType::kFloat16, half.data(), 4, doubles.data());
  EXPECT_THAT(doubles, ElementsAre(1, -2, 0.5, HUGE_VAL));
  std::vector<uint16_t> brain(4);
  FromDoubles(DataType::kBfloat16, doubles.data(), 4, brain.data());
  EXPECT_THAT(brain, ElementsAre(0x3f80, 0xc000, 0x3f00, 0x7f80));
}

}  // namespace
}  // namespace muster::internal
