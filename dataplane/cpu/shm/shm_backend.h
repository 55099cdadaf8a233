#ifndef MUSTER_DATAPLANE_CPU_SHM_SHM_BACKEND_H_
#define MUSTER_DATAPLANE_CPU_SHM_SHM_BACKEND_H_

#include <memory>

#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane {

// Makes a backend for CPU tensors: through shared memory among the ranks of one
// host, and hierarchically over several hosts. If no ranks can share memory, it
// works as the gloo backend, and the log says why. See CreateBackend.
StatusOr<std::unique_ptr<Backend>> CreateShmBackend(
    const BackendOptions& options);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_CPU_SHM_SHM_BACKEND_H_
