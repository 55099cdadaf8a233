#include "client/parallel/elements/float_conversion.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAreArray;

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat64,
                               DataType::kFloat16, DataType::kBfloat16};

// More than a piece. All types have these numbers.
std::vector<double> MakeNumbers() {
  std::vector<double> numbers;
  for (int i = 0; i < 3001; ++i) numbers.push_back((i % 255 - 127) * 0.125);
  return numbers;
}

TEST(FloatConversionTest, ConvertsBetweenAnyTwoTypes) {
  const std::vector<double> numbers = MakeNumbers();
  const auto count = static_cast<int64_t>(numbers.size());
  for (const DataType from_type : kTypes) {
    std::vector<double> from(numbers.size());
    Convert(from.data(), from_type, numbers.data(), DataType::kFloat64, count);
    for (const DataType to_type : kTypes) {
      std::vector<double> to(numbers.size());
      Convert(to.data(), to_type, from.data(), from_type, count);
      std::vector<double> back(numbers.size());
      Convert(back.data(), DataType::kFloat64, to.data(), to_type, count);
      EXPECT_THAT(back, ElementsAreArray(numbers));
    }
  }
}

TEST(FloatConversionTest, RoundsToTheNearestAndTiesToEven) {
  // The neighbours of 1 in bfloat16 are 1/128 away, and in float16 1/1024.
  const std::vector<double> numbers = {1 + 1.0 / 256, 1 + 3.0 / 256,
                                       1 + 1.0 / 2048, 1 + 3.0 / 2048};
  std::vector<uint16_t> bits(4);
  Convert(bits.data(), DataType::kBfloat16, numbers.data(), DataType::kFloat64,
          2);
  EXPECT_EQ(bits[0], 0x3f80);
  EXPECT_EQ(bits[1], 0x3f82);
  Convert(bits.data(), DataType::kFloat16, numbers.data() + 2,
          DataType::kFloat64, 2);
  EXPECT_EQ(bits[0], 0x3c00);
  EXPECT_EQ(bits[1], 0x3c02);
}

TEST(FloatConversionTest, AddsWhatItConverts) {
  std::vector<float> sum = {1, 2};
  const std::vector<uint16_t> ones = {0x3f80, 0x3f80};
  AddConverted(sum.data(), DataType::kFloat32, ones.data(), DataType::kBfloat16,
               2);
  EXPECT_THAT(sum, ElementsAreArray({2, 3}));
}

}  // namespace
}  // namespace muster::internal
