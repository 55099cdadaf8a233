#ifndef MUSTER_DATAPLANE_REDUCTION_TABLE_H_
#define MUSTER_DATAPLANE_REDUCTION_TABLE_H_

// C headers only: see reduction_kernels.inc.
#include <stddef.h>
#include <stdint.h>

namespace muster::dataplane {

struct KernelsOfType {
  using Reduce = void (*)(void* out, const void* a, const void* b,
                          size_t count);
  using Divide = void (*)(void* data, size_t count, int divisor);

  Reduce sum;
  Reduce min;
  Reduce max;
  Reduce product;
  Divide divide;
};

struct KernelTable {
  KernelsOfType int32;
  KernelsOfType int64;
  KernelsOfType float32;
  KernelsOfType float64;
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
