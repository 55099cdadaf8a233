#include "client/parallel/dtensor/random_fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

#include "client/parallel/dtensor/philox.h"

namespace muster::internal {
namespace {

// From 0 on, below 1, with all 53 digits of a double.
double ToUnit(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Calls `compute` with the index in the whole tensor for each element of the
// box, in the box's order, and writes what it returns.
template <typename Compute>
void FillByIndex(const Tensor& local, const ShardBox& box,
                 const std::vector<int64_t>& shape, Compute compute) {
  constexpr int64_t kAtOnce = 256;
  std::array<double, kAtOnce> values;
  auto* to = static_cast<std::byte*>(local.data());
  // A scalar is one row of one element.
  const size_t ndim = shape.size();
  const int64_t row = ndim == 0 ? 1 : box.lengths.back();
  const int64_t rows = row == 0 ? 0 : box.element_count() / row;
  for (int64_t number = 0; number < rows; ++number) {
    // The index of the row's first element.
    int64_t first = ndim == 0 ? 0 : box.offsets.back();
    int64_t rest = number;
    int64_t stride = ndim == 0 ? 1 : shape.back();
    for (size_t dim = ndim < 2 ? 0 : ndim - 1; dim-- > 0;) {
      first += (box.offsets[dim] + rest % box.lengths[dim]) * stride;
      rest /= box.lengths[dim];
      stride *= shape[dim];
    }
    for (int64_t done = 0; done < row; done += kAtOnce) {
      const int64_t some = std::min(kAtOnce, row - done);
      for (int64_t i = 0; i < some; ++i) {
        values[static_cast<size_t>(i)] =
            compute(static_cast<uint64_t>(first + done + i));
      }
      FromDoubles(local.data_type(), values.data(), some, to);
      to += static_cast<size_t>(some) * local.element_bytes();
    }
  }
}

}  // namespace

void FillUniform(const Tensor& local, const ShardBox& box,
                 const std::vector<int64_t>& shape, uint64_t seed, double low,
                 double high) {
  FillByIndex(local, box, shape, [&](uint64_t index) {
    const uint64_t bits = RandomBits(seed, index / 2)[index % 2];
    return low + (high - low) * ToUnit(bits);
  });
}

void FillNormal(const Tensor& local, const ShardBox& box,
                const std::vector<int64_t>& shape, uint64_t seed, double mean,
                double stddev) {
  FillByIndex(local, box, shape, [&](uint64_t index) {
    const auto bits = RandomBits(seed, index / 2);
    // Above 0, so that the logarithm is finite.
    const double radius = std::sqrt(-2 * std::log(1 - ToUnit(bits[0])));
    const double angle = 2 * std::numbers::pi * ToUnit(bits[1]);
    const double normal =
        radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
    return mean + stddev * normal;
  });
}

}  // namespace muster::internal
