// The nccl backend: collectives of tensors on CUDA devices.

#ifndef MUSTER_DATAPLANE_NCCL_NCCL_BACKEND_H_
#define MUSTER_DATAPLANE_NCCL_NCCL_BACKEND_H_

#include <memory>

#include "base/status.h"
#include "dataplane/backend.h"
#include "dataplane/nccl/platform.h"

namespace muster::dataplane::nccl {

// Returns at once. If the options name the device, the communicator is made
// from then on; otherwise with the first collective, on the device of its
// tensors. All later collectives must use that device. The options must name a
// device on all ranks of a group or on none. Operations started before the
// communicator is ready wait. If the options name the device, Split splits the
// communicator; with `excluded` ranks, and if nothing is running, it takes the
// communicator over, and this group ends. Sends and receives use communicators
// of their own, one per pair of ranks and direction, made with the first of
// them. Tags are ignored, because NCCL has none, so messages are matched by
// order alone.
//
// A collective begins after the work that its thread's current stream
// (cuda/stream.h) has been given by then, and runs in a stream of the group. A
// thread of the backend checks for its completion, its deadline and NCCL's
// errors; the first failure aborts all communicators and ends everything.
// Errors: kInvalidArgument (a device that does not exist, NCCL options that
// contradict each other).
StatusOr<std::unique_ptr<Backend>> CreateNcclBackend(
    const Platform& platform, const BackendOptions& options);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_NCCL_BACKEND_H_
