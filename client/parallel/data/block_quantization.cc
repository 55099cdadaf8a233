#include "client/parallel/data/block_quantization.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "muster/dataplane/float8.h"
#include "muster/dataplane/tensor.h"

namespace muster::internal {
namespace {

constexpr float kInt8Max = 127;
constexpr float kFloat8Max = 448;

// As dataplane::ToFloat8 for finite values, which searches a table: 2 ns
// instead of 60.
uint8_t ToFloat8(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Normal numbers: rounded to 3 bits of mantissa, with the exponent's bias
  // changed from 127 to 7. At most the largest value.
  const uint32_t normal = std::min(
      ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120u << 3),
      0x7eu);
  // Below 2^-6 the distance of numbers is 2^-9, as it is for float32 at 2^14.
  const float large = std::bit_cast<float>(magnitude) + 0x1p14f;
  const uint32_t small =
      std::bit_cast<uint32_t>(large) - std::bit_cast<uint32_t>(0x1p14f);
  constexpr uint32_t kSmallestNormal = std::bit_cast<uint32_t>(0x1p-6f);
  return static_cast<uint8_t>(sign |
                              (magnitude < kSmallestNormal ? small : normal));
}

int8_t ToInt8(float value) {
  // At 1.5 * 2^23 the distance of float32 is 1: adding rounds to nearest, ties
  // to even.
  constexpr float kRound = 0x1.8p23f;
  const auto bits = std::bit_cast<uint32_t>(value + kRound);
  return static_cast<int8_t>(bits - std::bit_cast<uint32_t>(kRound));
}

const std::array<float, 256>& Float8Values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all = {};
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = dataplane::FromFloat8(dataplane::DataType::kFloat8E4m3fn,
                                     static_cast<uint8_t>(i));
    }
    return all;
  }();
  return values;
}

// The factor from an 8-bit value to what it stands for.
float ComputeScale(const float* block, size_t count, float format_max) {
  // Integers, because no comparison of floats finds a NaN as the largest.
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(block[i]) & 0x7fffffff);
  }
  const auto absolute_max = std::bit_cast<float>(largest);
  if (!std::isfinite(absolute_max)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = absolute_max / format_max;
  return std::isfinite(1 / scale) ? scale : 0;
}

// Calls `each(at, count, scale, elements)` for each block: scales come first.
template <typename Each>
void ForEachBlock(const uint8_t* quantized, size_t count, Each each) {
  const size_t blocks = (count + kBlockElements - 1) / kBlockElements;
  const uint8_t* const elements = quantized + blocks * sizeof(float);
  for (size_t block = 0; block < blocks; ++block) {
    float scale = 0;
    std::memcpy(&scale, quantized + block * sizeof(float), sizeof(scale));
    const size_t at = block * kBlockElements;
    each(at, std::min(kBlockElements, count - at), scale, elements + at);
  }
}

// Calls `write(index, value)` for each element.
template <typename Write>
void ForEachValue(EightBits format, const uint8_t* quantized, size_t count,
                  Write write) {
  if (format == EightBits::kInt8) {
    ForEachBlock(
        quantized, count,
        [&](size_t at, size_t size, float scale, const uint8_t* elements) {
          for (size_t i = 0; i < size; ++i) {
            write(at + i,
                  scale * static_cast<float>(static_cast<int8_t>(elements[i])));
          }
        });
    return;
  }
  const auto& values = Float8Values();
  ForEachBlock(
      quantized, count,
      [&](size_t at, size_t size, float scale, const uint8_t* elements) {
        for (size_t i = 0; i < size; ++i) {
          write(at + i, scale * values[elements[i]]);
        }
      });
}

}  // namespace

void Quantize(EightBits format, const float* from, size_t count, uint8_t* to) {
  const bool is_int8 = format == EightBits::kInt8;
  const size_t blocks = (count + kBlockElements - 1) / kBlockElements;
  uint8_t* const elements = to + blocks * sizeof(float);
  for (size_t block = 0; block < blocks; ++block) {
    const size_t at = block * kBlockElements;
    const size_t size = std::min(kBlockElements, count - at);
    const float scale =
        ComputeScale(from + at, size, is_int8 ? kInt8Max : kFloat8Max);
    std::memcpy(to + block * sizeof(float), &scale, sizeof(scale));
    uint8_t* const out = elements + at;
    if (!(scale > 0)) {  // also NaN
      std::fill_n(out, kBlockElements, uint8_t{0});
      continue;
    }
    const float inverse = 1 / scale;
    if (is_int8) {
      for (size_t i = 0; i < size; ++i) {
        out[i] = static_cast<uint8_t>(ToInt8(from[at + i] * inverse));
      }
    } else {
      for (size_t i = 0; i < size; ++i) {
        out[i] = ToFloat8(from[at + i] * inverse);
      }
    }
    std::fill_n(out + size, kBlockElements - size, uint8_t{0});
  }
}

void Dequantize(EightBits format, const uint8_t* from, size_t count,
                float* to) {
  ForEachValue(format, from, count,
               [to](size_t at, float value) { to[at] = value; });
}

void DequantizeAndAdd(EightBits format, const uint8_t* from, size_t count,
                      float* to) {
  ForEachValue(format, from, count,
               [to](size_t at, float value) { to[at] += value; });
}

void SubtractQuantized(EightBits format, const uint8_t* rounded, size_t count,
                       float* exact) {
  ForEachValue(format, rounded, count, [exact](size_t at, float value) {
    exact[at] = std::isnan(value) ? 0 : exact[at] - value;
  });
}

}  // namespace muster::internal
