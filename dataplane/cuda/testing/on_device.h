#ifndef MUSTER_DATAPLANE_CUDA_TESTING_ON_DEVICE_H_
#define MUSTER_DATAPLANE_CUDA_TESTING_ON_DEVICE_H_

#include <memory>
#include <string>

#include "dataplane/backend.h"
#include "dataplane/cuda/api.h"

namespace muster::dataplane::cuda::testing {

// A backend of CPU tensors for the conformance suites, made of one of CUDA
// tensors: each collective runs on copies in the memory of `device`, which are
// made in the current stream and not waited for. Tensors that share memory do
// so there, too.
std::unique_ptr<Backend> OnDevice(const Api& api, int device, std::string name,
                                  std::unique_ptr<Backend> backend);

}  // namespace muster::dataplane::cuda::testing

#endif  // MUSTER_DATAPLANE_CUDA_TESTING_ON_DEVICE_H_
