#include "dataplane/reduction_table.h"

#define MUSTER_KERNEL_NAMESPACE kernels_avx512
#include "dataplane/reduction_kernels.inc"
