#ifndef MUSTER_DATAPLANE_CPU_SHM_SYMMETRIC_ALL_REDUCE_H_
#define MUSTER_DATAPLANE_CPU_SHM_SYMMETRIC_ALL_REDUCE_H_

#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/shm/rounds.h"

namespace muster::dataplane::shm {

// Runs `collective`, an all_reduce, where the tensors are: each rank combines
// its part of all of them, and writes it to all. If that fails, other ranks
// cannot write to this one's tensor any more (Regions::Withdraw). False, on all
// ranks: some tensor is not in symmetric memory, and nothing was done.
StatusOr<bool> RunSymmetricAllReduce(ShmContext& context,
                                     const Collective& collective);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_SYMMETRIC_ALL_REDUCE_H_
