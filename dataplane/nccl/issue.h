// Runs collectives as NCCL calls.

#ifndef MUSTER_DATAPLANE_NCCL_ISSUE_H_
#define MUSTER_DATAPLANE_NCCL_ISSUE_H_

#include "dataplane/cuda/api.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/platform.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::nccl {

// The communicator and stream for a collective.
struct Target {
  const cuda::Api& cuda;
  const Api& nccl;
  Comm comm = nullptr;
  int rank = 0;
  int size = 1;
  cuda::Stream stream = nullptr;
  // 4 bytes on the device, which a barrier reduces.
  void* scratch = nullptr;
  // The communicator has two ranks; rank 0 is the sender.
  bool is_pair = false;
  // The group wants copy engines, which ncclAlltoAll and ncclScatter can use,
  // but sends and receives cannot.
  bool wants_copy_engines = false;
};

// OK if NCCL can run `collective` in a group that is bound to `device` (-1: not
// bound yet).
// Errors: kUnimplemented (names what it or the device lacks), kInvalidArgument
// (tensors on another device), kFailedPrecondition (the current stream is being
// captured into a CUDA graph).
Status CheckSupported(const Platform& platform, const Collective& collective,
                      int device, int rank, int world_size);

// Enqueues `collective`, which is supported, in the target's stream.
// Errors: kInternal with NCCL's text; the communicator must then be aborted.
//
// With copy engines, a scatter and an all_to_all of equal, contiguous parts are
// one NCCL call if NCCL has it. Otherwise they are sends and receives, as in
// NCCL itself where it cannot use copy engines, so ranks may differ in that.
// But if the results lie in symmetric memory, the parts must be equal on all
// ranks or on none, and the root's list must be contiguous.
//
// A list of contiguous parts of one size is one call; other lists are one call
// per part, in an NCCL group. NCCL has no bool reductions (OR is MAX, AND is
// MIN) and no 16-bit integers, which are moved as bytes. A complex number is
// two real ones.
Status Issue(const Collective& collective, const Target& target);

// OK, or kInternal with `what`, which failed, and NCCL's text.
Status ToStatus(const Api& api, Result result, absl::string_view what,
                Comm comm = nullptr);

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_ISSUE_H_
