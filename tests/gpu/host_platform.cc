#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/nccl/nccl_backend.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "tests/gpu/platform.h"

namespace muster::gpu {

Status CudaAvailable() { return OkStatus(); }

Status NcclAvailable() {
  // The same as in NCCL.
  dataplane::nccl::testing::SetRoundsAtEachRank(true);
  return OkStatus();
}

const dataplane::cuda::Runtime& Cuda() {
  static const auto* const runtime = new dataplane::cuda::Runtime{
      .api = dataplane::cuda::testing::HostCudaApi(/*devices=*/4),
      .path = "the host's",
      .runtime_version = 13000,
      .driver_version = 13000,
      .devices = 4};
  return *runtime;
}

const dataplane::nccl::Library& Nccl() {
  static const auto* const library = new dataplane::nccl::Library{
      .api = dataplane::nccl::testing::HostNcclApi(),
      .path = "the host's",
      .version = 22809};
  return *library;
}

StatusOr<std::unique_ptr<dataplane::Backend>> CreateNccl(
    const dataplane::BackendOptions& options) {
  return dataplane::nccl::CreateNcclBackend(
      {.cuda = Cuda().api, .nccl = Nccl().api, .nccl_version = Nccl().version},
      options);
}

int64_t Divisor() { return 4096; }

}  // namespace muster::gpu
