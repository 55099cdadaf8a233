// Collectives whose ranks take from each other's tensors what they need.

#ifndef MUSTER_DATAPLANE_CPU_SHM_DIRECT_H_
#define MUSTER_DATAPLANE_CPU_SHM_DIRECT_H_

#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/shm/rounds.h"

namespace muster::dataplane::shm {

// Runs `collective`, but no all_to_all (all_to_all.h), and no all_reduce of
// symmetric memory alone (symmetric_all_reduce.h), from tensor to tensor: the
// ranks show each other where they have what they give, and each takes what it
// wants from there. False, on all ranks: some tensor is not `where` it must be,
// and nothing was done.
StatusOr<bool> RunSingleCopy(ShmContext& context, const Collective& collective,
                             Scope where);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_DIRECT_H_
