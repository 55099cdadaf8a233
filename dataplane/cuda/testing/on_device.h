#ifndef MUSTER_DATAPLANE_CUDA_TESTING_ON_DEVICE_H_
#define MUSTER_DATAPLANE_CUDA_TESTING_ON_DEVICE_H_

#include <memory>
#include <string>

#include "dataplane/cuda/api.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::cuda::testing {

// Wraps a backend for CUDA tensors as one for CPU tensors, for the conformance
// suites: each collective runs on copies in the memory of `device`, made in the
// current stream without waiting for them. Tensors that share memory share it
// there, too.
std::unique_ptr<Backend> OnDevice(const Api& api, int device, std::string name,
                                  std::unique_ptr<Backend> backend);

}  // namespace muster::dataplane::cuda::testing

#endif  // MUSTER_DATAPLANE_CUDA_TESTING_ON_DEVICE_H_
