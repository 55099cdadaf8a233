#include "dataplane/reduction_table.h"

#define MUSTER_KERNEL_NAMESPACE kernels_baseline
#include "dataplane/reduction_kernels.inc"
