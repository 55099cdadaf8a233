// Converts between gradients and float32, in which hooks compute.

#ifndef MUSTER_CLIENT_PARALLEL_DATA_FLOAT_CONVERSION_H_
#define MUSTER_CLIENT_PARALLEL_DATA_FLOAT_CONVERSION_H_

#include <algorithm>
#include <cstddef>

#include "dataplane/reduction.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::internal {

// The four types that gradients have: float16, bfloat16, float32, float64.
inline bool IsGradientType(dataplane::DataType type) {
  using dataplane::DataType;
  return type == DataType::kFloat16 || type == DataType::kBfloat16 ||
         type == DataType::kFloat32 || type == DataType::kFloat64;
}

// `out` has as many elements as `from`, whose type is one of these.
inline void ToFloats(const dataplane::Tensor& from, float* out) {
  const auto count = static_cast<size_t>(from.element_count());
  if (from.data_type() == dataplane::DataType::kFloat64) {
    const auto* const elements = static_cast<const double*>(from.data());
    std::transform(elements, elements + count, out,
                   [](double each) { return static_cast<float>(each); });
    return;
  }
  // The accumulators of a sum are float32 for the other types.
  dataplane::Reduction::Of(from.data_type(), dataplane::ReduceOp::kSum)
      .Load(out, from.data(), count, 1);
}

// Rounds to nearest, ties to even.
inline void FromFloats(const float* from, const dataplane::Tensor& out) {
  const auto count = static_cast<size_t>(out.element_count());
  if (out.data_type() == dataplane::DataType::kFloat64) {
    std::copy(from, from + count, static_cast<double*>(out.data()));
    return;
  }
  dataplane::Reduction::Of(out.data_type(), dataplane::ReduceOp::kSum)
      .Store(out.data(), from, count);
}

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DATA_FLOAT_CONVERSION_H_
