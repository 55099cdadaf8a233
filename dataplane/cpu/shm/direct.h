// Collectives in which ranks copy directly from each other's tensors.

#ifndef MUSTER_DATAPLANE_CPU_SHM_DIRECT_H_
#define MUSTER_DATAPLANE_CPU_SHM_DIRECT_H_

#include "dataplane/cpu/shm/rounds.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

// Runs `collective` from tensor to tensor: the ranks publish the addresses of
// their inputs, and each copies what it needs from there. Not for all_to_all
// (all_to_all.h), nor for all_reduce that is entirely in symmetric memory
// (symmetric_all_reduce.h). Returns false, on all ranks, if some tensor is not
// `where` it must be; then nothing was done.
StatusOr<bool> RunSingleCopy(ShmContext& context, const Collective& collective,
                             Scope where);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_DIRECT_H_
