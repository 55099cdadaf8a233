// Runs several collectives as one.

#ifndef MUSTER_DATAPLANE_COALESCING_H_
#define MUSTER_DATAPLANE_COALESCING_H_

#include <memory>
#include <vector>

#include "dataplane/communicator.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane {

// OK if collectives of this kind can be coalesced (CollectiveTraits). Otherwise
// kInvalidArgument.
Status CanCoalesce(CollectiveKind kind);

// OK if `next` can be coalesced with `first`: they have the same kind,
// reduction and factor. Otherwise kInvalidArgument, naming both values.
Status CanCoalesceWith(const Collective& first, const Collective& next);

// Starts `collectives` on `communicator` and returns one handle, which
// completes when all of them are complete, with the first error. They must have
// one kind, which CanCoalesce accepts, and one reduction. If one of them is not
// valid, the handle completes with its error and none is started.
//
// Small ones of one data type (except kAllGather) are fused: copied into one
// tensor, and back from it. The result is bit for bit the same as without
// fusing. If the operation depends on the order of its operands, only up to
// `fusable_bytes` of the backend are fused. The copies take as much memory as
// the fused tensors. Only types and sizes, which must be equal on all ranks,
// decide which ones are fused.
std::shared_ptr<Work> StartCoalesced(Communicator& communicator,
                                     std::vector<Collective> collectives);

// As StartCoalesced, for tensors on the CPU. Waits, and returns the first
// error.
Status RunCoalesced(Communicator& communicator,
                    std::vector<Collective> collectives);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_COALESCING_H_
