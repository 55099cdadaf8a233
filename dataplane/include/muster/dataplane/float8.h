// Conversions of the float8 types, for which C++ has no type. Part of the
// public API: the client exports these names in muster.

#ifndef MUSTER_DATAPLANE_FLOAT8_H_
#define MUSTER_DATAPLANE_FLOAT8_H_

#include <cstdint>

#include "muster/base/export.h"
#include "muster/dataplane/tensor.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// True for kFloat8E4m3fn (4 exponent bits, 3 mantissa bits, no infinity;
// largest value 448) and kFloat8E5m2 (5 and 2 bits; largest finite value
// 57344).
inline bool IsFloat8(DataType type) {
  return type == DataType::kFloat8E4m3fn || type == DataType::kFloat8E5m2;
}

// Rounds `value` to the nearest element, ties to even. Values beyond the
// largest finite number, infinity included, become that number, as in CUDA's
// saturating conversions; NaN stays NaN. `type` must be a float8 type.
uint8_t ToFloat8(DataType type, float value);

// The conversion is exact.
float FromFloat8(DataType type, uint8_t element);

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_FLOAT8_H_
