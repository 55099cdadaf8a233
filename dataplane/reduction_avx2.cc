#include "dataplane/reduction_table.h"

#define MUSTER_KERNEL_NAMESPACE kernels_avx2
#include "dataplane/reduction_kernels.inc"
