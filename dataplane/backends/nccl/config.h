#ifndef MUSTER_DATAPLANE_BACKENDS_NCCL_CONFIG_H_
#define MUSTER_DATAPLANE_BACKENDS_NCCL_CONFIG_H_

#include <string>

#include "absl/status/status.h"
#include "dataplane/backend.h"
#include "dataplane/backends/nccl/api.h"
#include "dataplane/backends/nccl/platform.h"

namespace muster::dataplane::nccl {

// Of a communicator that does not block, for an NCCL of this version. Its texts
// are those of the arguments, and NCCL does not copy them: these must outlive
// the communicator.
Config ConfigOf(const NcclOptions& options, const std::string& group_name,
                int version);

// Whether copy engines are to do what they can.
bool WantsCopyEngines(const NcclOptions& options);

// Errors: kInvalidArgument (a device that is not there, options of NCCL that
// contradict each other), kUnimplemented (this NCCL is too old for one of
// them).
absl::Status CheckOptions(const Platform& platform,
                          const BackendOptions& options);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_BACKENDS_NCCL_CONFIG_H_
