#include "muster/dataplane/factory.h"
#include "tests/gpu/platform.h"

namespace muster::gpu {

Status CudaAvailable() { return dataplane::cuda::TheRuntime().status(); }

Status NcclAvailable() { return dataplane::nccl::Available(); }

const dataplane::cuda::Runtime& Cuda() {
  return *dataplane::cuda::TheRuntime();
}

const dataplane::nccl::Library& Nccl() {
  static const auto* const library =
      new dataplane::nccl::Library(*dataplane::nccl::Load());
  return *library;
}

StatusOr<std::unique_ptr<dataplane::Backend>> CreateNccl(
    const dataplane::BackendOptions& options) {
  return dataplane::CreateBackend("nccl", options);
}

int64_t Divisor() { return 1; }

}  // namespace muster::gpu
