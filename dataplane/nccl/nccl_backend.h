// The nccl backend: collectives of tensors on CUDA devices.

#ifndef MUSTER_DATAPLANE_NCCL_NCCL_BACKEND_H_
#define MUSTER_DATAPLANE_NCCL_NCCL_BACKEND_H_

#include <memory>

#include "dataplane/nccl/platform.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::nccl {

// Makes an nccl backend; does not wait for other ranks. If the options name a
// device, the communicator is made from then on; otherwise with the first
// collective, on its tensors' device. All later collectives must use that
// device. The options must name a device on all ranks or on none. Operations
// that are started before the communicator is ready wait. If the options name a
// device, Split uses ncclCommSplit. With `excluded` ranks, if nothing is
// running, it takes over the communicator for ncclCommShrink, and this group
// ends. Sends and receives use communicators of their own, one per pair of
// ranks and direction, made with the first of them. NCCL has no tags, so tags
// are ignored and messages are matched by order alone.
//
// A collective begins after the work that is on its thread's current stream
// (cuda/stream.h) when it is started, and runs in a stream of the group. A
// thread of the backend checks for its completion, its deadline and NCCL's
// errors. The first failure aborts all communicators and ends everything.
// Errors: kInvalidArgument (a device that does not exist, NCCL options that
// contradict each other).
StatusOr<std::unique_ptr<Backend>> CreateNcclBackend(
    const Platform& platform, const BackendOptions& options);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_NCCL_BACKEND_H_
