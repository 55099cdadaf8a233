#ifndef MUSTER_DATAPLANE_CPU_SHM_SHM_BACKEND_H_
#define MUSTER_DATAPLANE_CPU_SHM_SHM_BACKEND_H_

#include <memory>

#include "base/status.h"
#include "dataplane/backend.h"

namespace muster::dataplane {

// CPU tensors, among ranks of one host in memory that they share, and among
// several hosts in two levels. Where no ranks can share any, as the gloo
// backend does it, and the log says why. See CreateBackend.
StatusOr<std::unique_ptr<Backend>> CreateShmBackend(
    const BackendOptions& options);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_CPU_SHM_SHM_BACKEND_H_
