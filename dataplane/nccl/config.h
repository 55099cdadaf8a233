#ifndef MUSTER_DATAPLANE_NCCL_CONFIG_H_
#define MUSTER_DATAPLANE_NCCL_CONFIG_H_

#include <string>

#include "dataplane/nccl/api.h"
#include "dataplane/nccl/platform.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/nccl_options.h"

namespace muster::dataplane::nccl {

// The options in BackendOptions or SplitOptions.
template <typename Options>
const NcclOptions& GetNcclOptions(const Options& options) {
  static const NcclOptions kDefaults;
  return options.nccl == nullptr ? kDefaults : *options.nccl;
}

// Makes the configuration for NCCL of this version. Its strings point into the
// arguments and NCCL does not copy them: the arguments must outlive the
// communicator.
Config MakeConfig(const NcclOptions& options, const std::string& group_name,
                  int version);

// Whether the communicator blocks. NCCL_COMM_BLOCKING in the environment
// overrides the option.
bool IsBlocking(const NcclOptions& options);

// Whether the options ask for copy engines wherever possible.
bool WantsCopyEngines(const NcclOptions& options);

// Errors: kInvalidArgument (a device that does not exist, or options that NCCL
// would refuse; names each with its value), kUnimplemented (this NCCL is too
// old for an option).
Status CheckOptions(const Platform& platform, const BackendOptions& options);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_CONFIG_H_
