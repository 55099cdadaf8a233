#include "muster/dataplane/float8.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

constexpr DataType kTypes[] = {DataType::kFloat8E4m3fn, DataType::kFloat8E5m2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Float8Test, EveryNumberComesBackAsItWent) {
  for (const DataType type : kTypes) {
    EXPECT_TRUE(IsFloat8(type));
    int numbers = 0;
    for (int bits = 0; bits < 256; ++bits) {
      const auto element = static_cast<uint8_t>(bits);
      const float value = FromFloat8(type, element);
      if (!std::isfinite(value)) continue;
      ++numbers;
      EXPECT_EQ(ToFloat8(type, value), element) << value;
    }
    EXPECT_EQ(numbers, type == DataType::kFloat8E4m3fn ? 254 : 248);
  }
  EXPECT_FALSE(IsFloat8(DataType::kFloat16));
}

TEST(Float8Test, TheyAreWhatTheTypesSay) {
  using enum DataType;
  EXPECT_EQ(FromFloat8(kFloat8E4m3fn, 0x38), 1);
  EXPECT_EQ(FromFloat8(kFloat8E4m3fn, 0xc1), -2.25);
  EXPECT_EQ(FromFloat8(kFloat8E4m3fn, 0x7e), 448);
  EXPECT_EQ(FromFloat8(kFloat8E4m3fn, 0x01), std::ldexp(1.0F, -9));
  EXPECT_TRUE(std::isnan(FromFloat8(kFloat8E4m3fn, 0x7f)));
  EXPECT_EQ(FromFloat8(kFloat8E5m2, 0x3c), 1);
  EXPECT_EQ(FromFloat8(kFloat8E5m2, 0xc1), -2.5);
  EXPECT_EQ(FromFloat8(kFloat8E5m2, 0x7b), 57344);
  EXPECT_EQ(FromFloat8(kFloat8E5m2, 0x01), std::ldexp(1.0F, -16));
  EXPECT_EQ(FromFloat8(kFloat8E5m2, 0xfc), -kInfinity);
  EXPECT_TRUE(std::isnan(FromFloat8(kFloat8E5m2, 0x7d)));
}

TEST(Float8Test, RoundsToTheNearestAndOfTwoToTheEvenOne) {
  using enum DataType;
  const auto rounded = [](DataType type, float value) {
    return FromFloat8(type, ToFloat8(type, value));
  };
  // Halfway between 16 and 18, and between 18 and 20.
  EXPECT_EQ(rounded(kFloat8E4m3fn, 17), 16);
  EXPECT_EQ(rounded(kFloat8E4m3fn, 19), 20);
  EXPECT_EQ(rounded(kFloat8E4m3fn, 17.001F), 18);
  EXPECT_EQ(rounded(kFloat8E5m2, -9), -8);
  EXPECT_EQ(rounded(kFloat8E5m2, -11), -12);
  EXPECT_EQ(rounded(kFloat8E5m2, 8.99F), 8);
  EXPECT_EQ(rounded(kFloat8E4m3fn, std::ldexp(1.0F, -10)), 0);
  EXPECT_TRUE(std::signbit(rounded(kFloat8E5m2, -0.0F)));
}

TEST(Float8Test, WhatIsTooLargeBecomesTheLargest) {
  for (const DataType type : kTypes) {
    const float largest = type == DataType::kFloat8E4m3fn ? 448 : 57344;
    for (const float value : {largest + 1, 1e30F, kInfinity}) {
      EXPECT_EQ(FromFloat8(type, ToFloat8(type, value)), largest);
      EXPECT_EQ(FromFloat8(type, ToFloat8(type, -value)), -largest);
    }
    EXPECT_TRUE(std::isnan(FromFloat8(
        type, ToFloat8(type, std::numeric_limits<float>::quiet_NaN()))));
  }
}

}  // namespace
}  // namespace muster::dataplane
