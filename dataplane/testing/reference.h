#ifndef MUSTER_DATAPLANE_TESTING_REFERENCE_H_
#define MUSTER_DATAPLANE_TESTING_REFERENCE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "dataplane/collective.h"

namespace muster::dataplane::testing {

// What rank `rank` brings as element `index`: different for every rank and
// element, of both signs, and such that no reduction of floating-point numbers
// overflows.
template <typename T>
T InputElement(ReduceOp op, int world_size, int rank, size_t index) {
  const auto number = static_cast<int64_t>(index) * world_size + rank;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(number - 1001);
  } else if (op == ReduceOp::kProduct) {
    const T magnitude = T{0.75} + static_cast<T>(number % 1021) / T{2048};
    return number % 3 == 0 ? -magnitude : magnitude;
  } else {
    return static_cast<T>(number) / T{4} - T{77};
  }
}

// The reduction of that element over all ranks, by other means than the
// kernels: integers in 128 bits, cut to T at the end; floating point in long
// double.
template <typename T>
T ExpectedElement(ReduceOp op, int world_size, size_t index) {
  using Wide = std::conditional_t<std::is_integral_v<T>, __int128, long double>;
  Wide result = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const Wide value = InputElement<T>(op, world_size, rank, index);
    if (rank == 0) {
      result = value;
    } else if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
      result += value;
    } else if (op == ReduceOp::kProduct) {
      result *= value;
      // Keeps the low bits of products that even 128 bits do not hold.
      if constexpr (std::is_integral_v<T>) result = static_cast<T>(result);
    } else {
      const bool take = op == ReduceOp::kMin ? value < result : value > result;
      if (take) result = value;
    }
  }
  if (op == ReduceOp::kAvg) result /= world_size;
  return static_cast<T>(result);
}

// Whether `actual` is `expected` but for the order of floating-point additions
// and multiplications.
template <typename T>
bool IsClose(T actual, T expected) {
  if constexpr (std::is_integral_v<T>) {
    return actual == expected;
  } else {
    // Eight roundings. Inputs are such that sums do not cancel to almost zero.
    const T epsilon = std::is_same_v<T, float> ? T{1e-6} : T{2e-15};
    return std::abs(actual - expected) <= epsilon * std::abs(expected);
  }
}

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_REFERENCE_H_
