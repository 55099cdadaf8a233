// The nccl backend: collectives of tensors on CUDA devices.

#ifndef MUSTER_DATAPLANE_NCCL_NCCL_BACKEND_H_
#define MUSTER_DATAPLANE_NCCL_NCCL_BACKEND_H_

#include <memory>

#include "base/status.h"
#include "dataplane/backend.h"
#include "dataplane/nccl/platform.h"

namespace muster::dataplane::nccl {

// Returns at once: the communicator is made from then on, if the options name
// the device, else with the first collective, on the device of its tensors; all
// later ones are to be on that device. What is started before it is ready
// waits. Split of a group whose options name the device splits it; the options
// must name one on all ranks of a group or on none. Of one that is to be
// without some ranks, and has nothing under way, the communicator is taken, and
// the group ends. Sends and receives have communicators of their own, one for
// each pair of ranks and direction, made with the first of them; tags are
// ignored, as NCCL has none, so their order alone matches them.
//
// A collective begins after what its thread's current stream (cuda/stream.h)
// has been given by then, and runs in a stream of the group. A thread of the
// backend looks for its end, at its deadline and at NCCL's errors; the first
// failure aborts all communicators and ends everything.
// Errors: kInvalidArgument (a device that is not there, options of NCCL that
// contradict each other).
StatusOr<std::unique_ptr<Backend>> CreateNcclBackend(
    const Platform& platform, const BackendOptions& options);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_NCCL_BACKEND_H_
