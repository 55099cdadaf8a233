// Several collectives as one.

#ifndef MUSTER_DATAPLANE_COALESCING_H_
#define MUSTER_DATAPLANE_COALESCING_H_

#include <memory>
#include <vector>

#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/communicator.h"
#include "dataplane/work.h"

namespace muster::dataplane {

// OK if collectives of this kind can be coalesced (CollectiveTraits). Otherwise
// kInvalidArgument.
Status CanCoalesce(CollectiveKind kind);

// OK if `next` can go with `first`: the same kind, reduction and factor.
// Otherwise kInvalidArgument, with what they have.
Status CanCoalesceWith(const Collective& first, const Collective& next);

// Starts `collectives`, of one such kind and one reduction, on `communicator`,
// and returns one handle of all of them: complete when all are, with the first
// error. If one of them is not valid, it completes with that, and nothing was
// started.
//
// Small ones of one type (not of kAllGather) travel together, copied into one
// tensor and back from it, where the result is bit for bit what it would be
// apart: always when the operation does not depend on the order of its
// operands, else up to the backend's `fusable_bytes`. The copies take as much
// memory as what is on its way. Which ones go together depends on types and
// sizes alone, which must be equal on all ranks.
std::shared_ptr<Work> StartCoalesced(Communicator& communicator,
                                     std::vector<Collective> collectives);

// The same, of tensors of the CPU, for whose end the caller waits: returns the
// first error.
Status RunCoalesced(Communicator& communicator,
                    std::vector<Collective> collectives);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_COALESCING_H_
