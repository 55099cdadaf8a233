#ifndef MUSTER_DATAPLANE_REDUCTION_TABLE_H_
#define MUSTER_DATAPLANE_REDUCTION_TABLE_H_

// C headers only: see reduction_kernels.inc.
#include <stddef.h>
#include <stdint.h>

namespace muster::dataplane {

// The loops of one element type. Those that it has no use for are null.
struct KernelsOfType {
  using Reduce = void (*)(void* out, const void* a, const void* b,
                          size_t count);
  using Divide = void (*)(void* data, size_t count, int divisor);
  // From elements to accumulators, with every element multiplied by `factor`.
  using Scale = void (*)(void* out, const void* elements, size_t count,
                         double factor);
  using Narrow = void (*)(void* elements, const void* accumulators,
                          size_t count);

  // On elements. The sum of the 16 bit types is that of two alone: each is
  // rounded.
  Reduce sum = nullptr;
  Reduce min = nullptr;
  Reduce max = nullptr;
  Reduce product = nullptr;
  Reduce bit_and = nullptr;
  Reduce bit_or = nullptr;
  Reduce bit_xor = nullptr;
  Divide divide = nullptr;

  // Floating point: out = elements x factor, and out = out + elements x factor.
  // Of the 16 bit types `out` is float32.
  Scale load = nullptr;
  Scale add = nullptr;

  // The 16 bit types: out = out x elements in float32, and the way back.
  Scale multiply = nullptr;
  Narrow narrow = nullptr;
};

// A complex number is two of its parts.
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
};

// The same loops for several instruction sets. Those of AVX exist on x86-64
// only and may be called only where the CPU has it.
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
