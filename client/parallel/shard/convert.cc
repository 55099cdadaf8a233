#include "client/parallel/shard/convert.h"

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

// A sum's accumulators of 16-bit elements are float32: loading, adding and
// storing them are the conversions, with the CPU's instructions.
void Convert(void* to, DataType to_type, const void* from, DataType from_type,
             int64_t count) {
  if (count == 0) return;
  const auto elements = static_cast<size_t>(count);
  if (to_type == from_type) {
    std::memcpy(to, from, elements * dataplane::DataTypeBytes(to_type));
  } else if (to_type == DataType::kFloat32) {
    Reduction::Of(from_type, ReduceOp::kSum).Load(to, from, elements, 1);
  } else {
    Reduction::Of(to_type, ReduceOp::kSum).Store(to, from, elements);
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
