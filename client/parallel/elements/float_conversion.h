// Conversion and elementwise work on memory of the four floating-point types.

#ifndef MUSTER_CLIENT_PARALLEL_ELEMENTS_FLOAT_CONVERSION_H_
#define MUSTER_CLIENT_PARALLEL_ELEMENTS_FLOAT_CONVERSION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "muster/dataplane/tensor.h"

namespace muster::internal {

using dataplane::DataType;

// float32, float64, float16 or bfloat16.
bool IsFloat(DataType type);
bool IsFloat16Bits(DataType type);

// Writes `count` elements of `from` to `to`, of any two of the types. Rounds to
// nearest, ties to even; from float64 to 16 bits by way of float32. The memory
// does not overlap.
void Convert(void* to, DataType to_type, const void* from, DataType from_type,
             int64_t count);

// Adds the elements of `from` to those of `to`. The types are equal, or `to` is
// float32 and `from` has 16 bits.
void AddConverted(void* to, DataType to_type, const void* from,
                  DataType from_type, int64_t count);

// Converts all elements of a tensor. `floats` has as many.
inline void ToFloats(const dataplane::Tensor& from, float* floats) {
  Convert(floats, DataType::kFloat32, from.data(), from.data_type(),
          from.element_count());
}
inline void FromFloats(const float* floats, const dataplane::Tensor& to) {
  Convert(to.data(), to.data_type(), floats, DataType::kFloat32,
          to.element_count());
}

// Calls `body` with pointers to the elements of all `arrays`, as spans of
// double or float, piece by piece: 16-bit elements are converted to float, and
// written back from there. All arrays have `count` elements of `type`.
template <size_t kArrays, typename Body>
void ForElements(DataType type, const std::array<void*, kArrays>& arrays,
                 int64_t count, Body&& body) {
  const auto bytes = [&](size_t i) {
    return static_cast<std::byte*>(arrays[i]);
  };
  if (type == DataType::kFloat64 || type == DataType::kFloat32) {
    const auto all = [&]<typename T>(T*) {
      std::array<T*, kArrays> typed;
      for (size_t i = 0; i < kArrays; ++i)
        typed[i] = static_cast<T*>(arrays[i]);
      body(typed, count);
    };
    return type == DataType::kFloat64 ? all(static_cast<double*>(nullptr))
                                      : all(static_cast<float*>(nullptr));
  }
  constexpr int64_t kPiece = 1024;
  std::array<std::array<float, kPiece>, kArrays> staged;
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t now = std::min(kPiece, count - first);
    std::array<float*, kArrays> typed;
    for (size_t i = 0; i < kArrays; ++i) {
      typed[i] = staged[i].data();
      Convert(typed[i], DataType::kFloat32, bytes(i) + 2 * first, type, now);
    }
    body(typed, now);
    for (size_t i = 0; i < kArrays; ++i) {
      Convert(bytes(i) + 2 * first, type, typed[i], DataType::kFloat32, now);
    }
  }
}

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_ELEMENTS_FLOAT_CONVERSION_H_
