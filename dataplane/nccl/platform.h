#ifndef MUSTER_DATAPLANE_NCCL_PLATFORM_H_
#define MUSTER_DATAPLANE_NCCL_PLATFORM_H_

#include "dataplane/cuda/api.h"
#include "dataplane/nccl/api.h"

namespace muster::dataplane::nccl {

// The libraries that the backend uses: the loaded ones, or a test's fakes.
struct Platform {
  cuda::Api cuda;
  Api nccl;
  int nccl_version = 0;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_PLATFORM_H_
