// What the checks stand on: the machine's CUDA and NCCL (gpu_platform.cc), or
// those of the host, by which the checks themselves are checked
// (host_platform.cc).

#ifndef MUSTER_TESTS_GPU_PLATFORM_H_
#define MUSTER_TESTS_GPU_PLATFORM_H_

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "dataplane/backend.h"
#include "dataplane/cuda/api.h"
#include "dataplane/nccl/api.h"

namespace muster::gpu {

// Why there are no CUDA tensors here, or no nccl; OK if there are.
Status CudaAvailable();
Status NcclAvailable();

// Where they are.
const dataplane::cuda::Runtime& Cuda();
const dataplane::nccl::Library& Nccl();
StatusOr<std::unique_ptr<dataplane::Backend>> CreateNccl(
    const dataplane::BackendOptions& options);

// What large tensors' sizes are divided by.
int64_t Divisor();

}  // namespace muster::gpu

#endif  // MUSTER_TESTS_GPU_PLATFORM_H_
