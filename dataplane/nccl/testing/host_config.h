#ifndef MUSTER_DATAPLANE_NCCL_TESTING_HOST_CONFIG_H_
#define MUSTER_DATAPLANE_NCCL_TESTING_HOST_CONFIG_H_

#include <string>

#include "dataplane/nccl/api.h"

namespace muster::dataplane::nccl::testing {

// Returns why NCCL would refuse `config`, or "".
std::string WhatIsWrongWith(const Config& config);

}  // namespace muster::dataplane::nccl::testing

#endif  // MUSTER_DATAPLANE_NCCL_TESTING_HOST_CONFIG_H_
