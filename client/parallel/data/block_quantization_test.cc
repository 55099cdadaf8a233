#include "client/parallel/data/block_quantization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "muster/dataplane/float8.h"
#include "muster/dataplane/tensor.h"

namespace muster::internal {
namespace {

constexpr EightBits kFormats[] = {EightBits::kInt8, EightBits::kFloat8E4m3fn};

std::vector<uint8_t> Quantized(EightBits format,
                               const std::vector<float>& values) {
  const size_t blocks = (values.size() + kBlockElements - 1) / kBlockElements;
  std::vector<uint8_t> bytes(QuantizedBytes(blocks * kBlockElements), 0xee);
  Quantize(format, values.data(), values.size(), bytes.data());
  return bytes;
}

std::vector<float> RoundTrip(EightBits format,
                             const std::vector<float>& values) {
  std::vector<float> result(values.size());
  Dequantize(format, Quantized(format, values).data(), values.size(),
             result.data());
  return result;
}

TEST(BlockQuantizationTest, Float8RoundsAsTheDataPlaneDoes) {
  // A block whose largest value is 448 has the scale 1.
  std::mt19937 random(8);
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> values(kBlockElements);
    for (float& value : values) {
      do {
        value = std::bit_cast<float>(static_cast<uint32_t>(random()));
      } while (!(std::abs(value) <= 448));
      // Numbers in and near the range of the format.
      if (round % 2 == 0) {
        value = std::ldexp(static_cast<float>(random() % 1024) / 512 - 1,
                           static_cast<int>(random() % 22) - 13);
      }
    }
    values[7] = -448;
    const std::vector<uint8_t> bytes =
        Quantized(EightBits::kFloat8E4m3fn, values);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(
          bytes[sizeof(float) + i],
          dataplane::ToFloat8(dataplane::DataType::kFloat8E4m3fn, values[i]))
          << values[i];
    }
  }
}

TEST(BlockQuantizationTest, EachBlockHasItsOwnScale) {
  std::vector<float> values(2 * kBlockElements, 1e-6f);
  values[0] = 1e6f;
  for (const EightBits format : kFormats) {
    const std::vector<float> result = RoundTrip(format, values);
    EXPECT_FLOAT_EQ(result[0], 1e6f);
    EXPECT_EQ(result[1], 0);
    EXPECT_FLOAT_EQ(result[kBlockElements], 1e-6f);
  }
}

TEST(BlockQuantizationTest, ErrorsAreAtMostHalfADistance) {
  std::mt19937 random(9);
  std::uniform_real_distribution<float> uniform(-3, 3);
  for (const size_t count : {1, 2, 255, 256, 257, 1000}) {
    std::vector<float> values(count);
    for (float& value : values) value = uniform(random);
    for (size_t block = 0; block < count; block += kBlockElements) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(block);
      const auto end = begin + static_cast<std::ptrdiff_t>(
                                   std::min(kBlockElements, count - block));
      float largest = 0;
      for (auto at = begin; at != end; ++at) {
        largest = std::max(largest, std::abs(*at));
      }
      const std::vector<float> part(begin, end);
      const std::vector<float> int8 = RoundTrip(EightBits::kInt8, part);
      const std::vector<float> fp8 = RoundTrip(EightBits::kFloat8E4m3fn, part);
      for (size_t i = 0; i < part.size(); ++i) {
        EXPECT_LE(std::abs(int8[i] - part[i]), largest / 254 * 1.001f);
        // 3 bits of mantissa, or the distance of the smallest numbers.
        EXPECT_LE(
            std::abs(fp8[i] - part[i]),
            std::max(std::abs(part[i]) / 16, largest / 448 / 1024) * 1.001f);
      }
    }
  }
}

TEST(BlockQuantizationTest, ErrorsAreWhatWasNotSent) {
  const std::vector<float> values = {0.3f, -1.7f, 0.001f, 2};
  for (const EightBits format : kFormats) {
    const std::vector<uint8_t> bytes = Quantized(format, values);
    std::vector<float> rounded(values.size());
    Dequantize(format, bytes.data(), values.size(), rounded.data());
    std::vector<float> errors = values;
    SubtractQuantized(format, bytes.data(), values.size(), errors.data());
    std::vector<float> sum(values.size(), 10);
    DequantizeAndAdd(format, bytes.data(), values.size(), sum.data());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(errors[i], values[i] - rounded[i]);
      EXPECT_EQ(sum[i], 10 + rounded[i]);
    }
  }
}

TEST(BlockQuantizationTest, ABlockThatIsNotFiniteBecomesNan) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(kBlockElements + 1, 1);
    values[5] = bad;
    for (const EightBits format : kFormats) {
      const std::vector<float> result = RoundTrip(format, values);
      for (size_t i = 0; i < kBlockElements; ++i) {
        ASSERT_TRUE(std::isnan(result[i]));
      }
      EXPECT_EQ(result[kBlockElements], 1);
      std::vector<float> errors = values;
      SubtractQuantized(format, Quantized(format, values).data(), values.size(),
                        errors.data());
      EXPECT_EQ(errors, std::vector<float>(values.size(), 0));
    }
  }
}

TEST(BlockQuantizationTest, NumbersTooSmallForAScaleBecomeZeros) {
  for (const float tiny : {0.0f, 1e-45f, 1e-38f, -1e-38f}) {
    for (const EightBits format : kFormats) {
      const std::vector<float> values = {tiny, tiny / 2};
      EXPECT_EQ(RoundTrip(format, values), std::vector<float>(2, 0));
      std::vector<float> errors = values;
      SubtractQuantized(format, Quantized(format, values).data(), 2,
                        errors.data());
      EXPECT_EQ(errors, values);
    }
  }
}

}  // namespace
}  // namespace muster::internal
