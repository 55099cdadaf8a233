// Numbers of the float8 types, of which C++ has none. Part of the public API:
// the client exports these names in muster.

#ifndef MUSTER_DATAPLANE_FLOAT8_H_
#define MUSTER_DATAPLANE_FLOAT8_H_

#include <cstdint>

#include "dataplane/tensor.h"

namespace muster::dataplane {

// kFloat8E4m3fn (4 bits of exponent, 3 of mantissa; up to 448, no infinity) or
// kFloat8E5m2 (5 and 2; up to 57344).
inline bool IsFloat8(DataType type) {
  return type == DataType::kFloat8E4m3fn || type == DataType::kFloat8E5m2;
}

// The element nearest to `value`, of two the one with an even last bit. What is
// beyond the largest number becomes that, infinity too, as CUDA's conversions
// have it; NaN stays NaN. `type` is one of those two.
uint8_t ToFloat8(DataType type, float value);

// Exact.
float FromFloat8(DataType type, uint8_t element);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_FLOAT8_H_
