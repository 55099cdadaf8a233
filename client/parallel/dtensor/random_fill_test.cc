#include "client/parallel/dtensor/random_fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "client/parallel/dtensor/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;

TEST(PhiloxTest, TheAuthorsKnownAnswersComeOut) {
  // Random123's kat_vectors, philox4x32 10.
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr uint32_t kAll = 0xffffffff;
  EXPECT_THAT(Philox4x32({kAll, kAll, kAll, kAll}, {kAll, kAll}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                         {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(RandomFillTest, APartHasTheNumbersOfTheWhole) {
  const std::vector<int64_t> shape = {5, 4, 7};
  const ShardBox everything = {.offsets = {0, 0, 0}, .lengths = shape};
  std::vector<double> whole(5 * 4 * 7);
  FillNormal(Tensor(whole.data(), shape), everything, shape, 11, 0, 1);
  const ShardBox box = {.offsets = {1, 2, 3}, .lengths = {3, 2, 4}};
  std::vector<double> part(3 * 2 * 4);
  FillNormal(Tensor(part.data(), box.lengths), box, shape, 11, 0, 1);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      for (int64_t k = 0; k < 4; ++k) {
        EXPECT_EQ(
            part[static_cast<size_t>((i * 2 + j) * 4 + k)],
            whole[static_cast<size_t>(((i + 1) * 4 + j + 2) * 7 + k + 3)]);
      }
    }
  }
}

TEST(RandomFillTest, TheMomentsAreThoseOfTheDistribution) {
  constexpr int64_t kCount = 100000;
  const ShardBox box = {.offsets = {0}, .lengths = {kCount}};
  std::vector<double> values(kCount);
  const auto find_moment = [&](double mean, int power) {
    double sum = 0;
    for (const double value : values) sum += std::pow(value - mean, power);
    return sum / kCount;
  };
  FillUniform(values, box, {kCount}, 1, -2, 6);
  EXPECT_GE(*std::min_element(values.begin(), values.end()), -2);
  EXPECT_LT(*std::max_element(values.begin(), values.end()), 6);
  EXPECT_NEAR(find_moment(0, 1), 2, 0.05);
  EXPECT_NEAR(find_moment(2, 2), 64.0 / 12, 0.1);
  FillNormal(values, box, {kCount}, 1, 3, 2);
  EXPECT_NEAR(find_moment(0, 1), 3, 0.05);
  EXPECT_NEAR(find_moment(3, 2), 4, 0.1);
  EXPECT_NEAR(find_moment(3, 3), 0, 0.3);
  EXPECT_NEAR(find_moment(3, 4), 48, 2);
  // Neighbours do not hang together.
  double together = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    together += (values[i] - 3) * (values[i - 1] - 3);
  }
  EXPECT_NEAR(together / kCount, 0, 0.1);
}

TEST(RandomFillTest, SeedsAndTypesChangeTheNumbersAsTheyShould) {
  const ShardBox box = {.offsets = {0}, .lengths = {301}};
  std::vector<double> exact(301);
  std::vector<double> other(301);
  FillUniform(exact, box, {301}, 1, 0, 1);
  FillUniform(other, box, {301}, 2, 0, 1);
  EXPECT_NE(exact, other);
  FillUniform(other, box, {301}, uint64_t{1} << 32 | 1, 0, 1);
  EXPECT_NE(exact, other);
  // The same numbers, rounded.
  std::vector<float> floats(301);
  FillUniform(floats, box, {301}, 1, 0, 1);
  std::vector<uint16_t> bits(301);
  FillUniform(Tensor(bits.data(), DataType::kBfloat16, {301}), box, {301}, 1, 0,
              1);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(floats[i], static_cast<float>(exact[i]));
    const uint32_t wide = uint32_t{bits[i]} << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof(value));
    EXPECT_NEAR(value, exact[i], exact[i] / 256);
  }
  // A scalar has one number.
  double scalar = 0;
  FillUniform(Tensor(&scalar, {}), {}, {}, 1, 0, 1);
  EXPECT_EQ(scalar, exact[0]);
}

}  // namespace
}  // namespace muster::internal
