#ifndef MUSTER_DATAPLANE_REDUCTION_TABLE_H_
#define MUSTER_DATAPLANE_REDUCTION_TABLE_H_

// C headers only: see reduction_kernels.inc.
#include <stddef.h>
#include <stdint.h>

namespace muster::dataplane {

// The loops of one element type. Loops that it does not need are null.
struct KernelsOfType {
  using Reduce = void (*)(void* out, const void* a, const void* b,
                          size_t count);
  using Divide = void (*)(void* data, size_t count, int divisor);
  // Converts elements to accumulators and multiplies by `factor`.
  using Scale = void (*)(void* out, const void* elements, size_t count,
                         double factor);
  using Narrow = void (*)(void* elements, const void* accumulators,
                          size_t count);

  // On elements. The 16-bit sums are for two operands only, since each result
  // is rounded.
  Reduce sum = nullptr;
  Reduce min = nullptr;
  Reduce max = nullptr;
  Reduce product = nullptr;
  Reduce bit_and = nullptr;
  Reduce bit_or = nullptr;
  Reduce bit_xor = nullptr;
  // On pairs of a value and an index.
  Reduce min_location = nullptr;
  Reduce max_location = nullptr;
  Divide divide = nullptr;

  // Floating point: out = elements x factor, and out = out + elements x factor.
  // For 16-bit types `out` is float32.
  Scale load = nullptr;
  Scale add = nullptr;

  // 16-bit types: out = out x elements in float32, and the conversion back.
  Scale multiply = nullptr;
  Narrow narrow = nullptr;
};

// A complex number uses the loops of its two parts.
struct KernelTable {
  KernelsOfType uint8;
  KernelsOfType int8;
  KernelsOfType int16;
  KernelsOfType int32;
  KernelsOfType int64;
  KernelsOfType float16;
  KernelsOfType bfloat16;
  KernelsOfType float32;
  KernelsOfType float64;
  KernelsOfType boolean;
  KernelsOfType uint16;
  KernelsOfType uint32;
  KernelsOfType uint64;
  KernelsOfType float32_int32;
  KernelsOfType float64_int64;
  KernelsOfType int32_int32;
  KernelsOfType int64_int64;
};

// The same loops for several instruction sets. The AVX ones exist only on
// x86-64 and may be called only if the CPU supports them.
namespace kernels_baseline {
const KernelTable& Table();
}
namespace kernels_avx2 {
const KernelTable& Table();
}
namespace kernels_avx512 {
const KernelTable& Table();
}

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_REDUCTION_TABLE_H_
