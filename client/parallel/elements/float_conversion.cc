#include "client/parallel/elements/float_conversion.h"

#include <array>
#include <cstring>

#include "dataplane/reduction.h"

namespace muster::internal {

using dataplane::ReduceOp;
using dataplane::Reduction;

bool IsFloat16Bits(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16;
}

bool IsFloat(DataType type) {
  return IsFloat16Bits(type) || type == DataType::kFloat32 ||
         type == DataType::kFloat64;
}

namespace {

constexpr int64_t kPiece = 1024;

template <typename To, typename From>
void ConvertEach(void* to, const void* from, int64_t count) {
  const auto* const elements = static_cast<const From*>(from);
  std::transform(elements, elements + count, static_cast<To*>(to),
                 [](From each) { return static_cast<To>(each); });
}

// A sum's accumulators of 16-bit elements are float32: loading, adding and
// storing them are the conversions, with the CPU's instructions.
void ToFloat32(float* to, const void* from, DataType from_type, int64_t count) {
  if (from_type == DataType::kFloat64) {
    return ConvertEach<float, double>(to, from, count);
  }
  Reduction::Of(from_type, ReduceOp::kSum)
      .Load(to, from, static_cast<size_t>(count), 1);
}

void FromFloat32(void* to, DataType to_type, const float* from, int64_t count) {
  if (to_type == DataType::kFloat64) {
    return ConvertEach<double, float>(to, from, count);
  }
  Reduction::Of(to_type, ReduceOp::kSum)
      .Store(to, from, static_cast<size_t>(count));
}

}  // namespace

void Convert(void* to, DataType to_type, const void* from, DataType from_type,
             int64_t count) {
  if (count == 0) return;
  if (to_type == from_type) {
    std::memcpy(to, from,
                static_cast<size_t>(count) * dataplane::DataTypeBytes(to_type));
  } else if (to_type == DataType::kFloat32) {
    ToFloat32(static_cast<float*>(to), from, from_type, count);
  } else if (from_type == DataType::kFloat32) {
    FromFloat32(to, to_type, static_cast<const float*>(from), count);
  } else {
    std::array<float, kPiece> floats;
    const auto to_bytes =
        static_cast<int64_t>(dataplane::DataTypeBytes(to_type));
    const auto from_bytes =
        static_cast<int64_t>(dataplane::DataTypeBytes(from_type));
    for (int64_t first = 0; first < count; first += kPiece) {
      const int64_t now = std::min(kPiece, count - first);
      ToFloat32(floats.data(),
                static_cast<const std::byte*>(from) + first * from_bytes,
                from_type, now);
      FromFloat32(static_cast<std::byte*>(to) + first * to_bytes, to_type,
                  floats.data(), now);
    }
  }
}

void AddConverted(void* to, DataType to_type, const void* from,
                  DataType from_type, int64_t count) {
  if (count == 0) return;
  const auto elements = static_cast<size_t>(count);
  const Reduction& sum = Reduction::Of(from_type, ReduceOp::kSum);
  if (to_type == from_type) {
    const std::array<const void*, 2> operands = {to, from};
    sum.CombineAll(to, operands, {}, elements, 1);
  } else {
    sum.Add(to, from, elements, 1);
  }
}

}  // namespace muster::internal
