#include "muster/dataplane/float8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace muster::dataplane {
namespace {

constexpr uint8_t kSign = 0x80;
constexpr uint8_t kMagnitude = 0x7f;

// The bit layout of `type`. kFloat8E4m3fn has one NaN pattern; in kFloat8E5m2
// the largest exponent means infinity or NaN.
struct Layout {
  int mantissa_bits;
  int bias;
  uint8_t largest;
  uint8_t nan;
};

Layout GetLayout(DataType type) {
  if (type == DataType::kFloat8E4m3fn) {
    return {.mantissa_bits = 3, .bias = 7, .largest = 0x7e, .nan = 0x7f};
  }
  return {.mantissa_bits = 2, .bias = 15, .largest = 0x7b, .nan = 0x7f};
}

// The values of the patterns without a sign, ascending.
using Magnitudes = std::array<float, kMagnitude>;

Magnitudes ComputeMagnitudes(const Layout& layout) {
  Magnitudes magnitudes = {};
  for (int bits = 0; bits <= layout.largest; ++bits) {
    const int exponent = bits >> layout.mantissa_bits;
    const int mantissa = bits & ((1 << layout.mantissa_bits) - 1);
    // Subnormal numbers have no leading 1.
    const int digits =
        exponent == 0 ? mantissa : (1 << layout.mantissa_bits) + mantissa;
    magnitudes[static_cast<size_t>(bits)] =
        std::ldexp(static_cast<float>(digits),
                   std::max(exponent, 1) - layout.bias - layout.mantissa_bits);
  }
  return magnitudes;
}

const Magnitudes& GetMagnitudes(DataType type) {
  static const Magnitudes e4m3fn =
      ComputeMagnitudes(GetLayout(DataType::kFloat8E4m3fn));
  static const Magnitudes e5m2 =
      ComputeMagnitudes(GetLayout(DataType::kFloat8E5m2));
  return type == DataType::kFloat8E4m3fn ? e4m3fn : e5m2;
}

}  // namespace

uint8_t ToFloat8(DataType type, float value) {
  const Layout layout = GetLayout(type);
  const uint8_t sign = std::signbit(value) ? kSign : 0;
  if (std::isnan(value)) return sign | layout.nan;
  const float magnitude = std::abs(value);
  const Magnitudes& all = GetMagnitudes(type);
  const auto above = std::upper_bound(
      all.begin(), all.begin() + layout.largest + 1, magnitude);
  auto low = static_cast<size_t>(above - all.begin()) - 1;
  if (low < layout.largest) {
    const float under = magnitude - all[low];
    const float over = all[low + 1] - magnitude;
    if (over < under || (over == under && low % 2 == 1)) ++low;
  }
  return sign | static_cast<uint8_t>(low);
}

float FromFloat8(DataType type, uint8_t element) {
  const Layout layout = GetLayout(type);
  const size_t bits = element & kMagnitude;
  float magnitude = std::numeric_limits<float>::quiet_NaN();
  if (bits <= layout.largest) {
    magnitude = GetMagnitudes(type)[bits];
  } else if (type == DataType::kFloat8E5m2 &&
             bits == size_t{layout.largest} + 1) {
    magnitude = std::numeric_limits<float>::infinity();
  }
  return (element & kSign) == 0 ? magnitude : -magnitude;
}

}  // namespace muster::dataplane
