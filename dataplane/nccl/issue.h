// Runs collectives as NCCL calls.

#ifndef MUSTER_DATAPLANE_NCCL_ISSUE_H_
#define MUSTER_DATAPLANE_NCCL_ISSUE_H_

#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cuda/api.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/platform.h"

namespace muster::dataplane::nccl {

// Where a collective is to run.
struct Target {
  const cuda::Api& cuda;
  const Api& nccl;
  Comm comm = nullptr;
  int rank = 0;
  int size = 1;
  cuda::Stream stream = nullptr;
  // 4 bytes on the device, of nobody's: what a barrier reduces.
  void* scratch = nullptr;
  // The communicator is that of two ranks, of which the sender is rank 0.
  bool is_pair = false;
  // The group wants copy engines: those work behind ncclAlltoAll and
  // ncclScatter, not behind sends and receives.
  bool wants_copy_engines = false;
};

// OK if NCCL can run `collective` in a group that is bound to `device` (-1: not
// bound yet).
// Errors: kUnimplemented (names what it or the device lacks), kInvalidArgument
// (tensors on another device), kFailedPrecondition (the current stream is being
// captured into a CUDA graph).
Status CheckSupported(const Platform& platform, const Collective& collective,
                      int device, int rank, int world_size);

// Puts `collective`, which is supported, into the target's stream.
// Errors: kInternal with NCCL's own words; then the communicator is to be
// aborted.
//
// With copy engines, an all_to_all of equal parts, which are one piece of
// memory, and a scatter are one call, where NCCL has it; else sends and
// receives, as NCCL does them itself where copy engines cannot. So ranks may
// differ in that, unless the results lie in symmetric memory: then the parts
// are to be equal on all ranks or on none, and the root's list is to be one
// piece.
//
// How: lists whose parts lie one after the other in memory, and are of one
// size, are one call; others are calls for each part, in a group. NCCL has no
// reductions of bool, of which or is MAX and and is MIN, and no types for what
// is moved as bytes: 16 bit integers. A complex number is two real ones.
Status Issue(const Collective& collective, const Target& target);

// OK, or kInternal with `what` that failed and NCCL's own text.
Status ToStatus(const Api& api, Result result, absl::string_view what,
                Comm comm = nullptr);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_ISSUE_H_
