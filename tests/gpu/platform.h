// The CUDA and NCCL that the checks use: the machine's (gpu_platform.cc), or
// those of the host, to test the checks themselves (host_platform.cc).

#ifndef MUSTER_TESTS_GPU_PLATFORM_H_
#define MUSTER_TESTS_GPU_PLATFORM_H_

#include <cstdint>
#include <memory>

#include "dataplane/cuda/api.h"
#include "dataplane/nccl/api.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::gpu {

// OK, or the reason why there are no CUDA tensors or no nccl.
Status CudaAvailable();
Status NcclAvailable();

// Only if they are available.
const dataplane::cuda::Runtime& Cuda();
const dataplane::nccl::Library& Nccl();
StatusOr<std::unique_ptr<dataplane::Backend>> CreateNccl(
    const dataplane::BackendOptions& options);

// The divisor of large tensors' sizes.
int64_t Divisor();

}  // namespace muster::gpu

#endif  // MUSTER_TESTS_GPU_PLATFORM_H_
