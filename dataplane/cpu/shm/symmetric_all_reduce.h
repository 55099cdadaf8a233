#ifndef MUSTER_DATAPLANE_CPU_SHM_SYMMETRIC_ALL_REDUCE_H_
#define MUSTER_DATAPLANE_CPU_SHM_SYMMETRIC_ALL_REDUCE_H_

#include "dataplane/cpu/shm/rounds.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

// Runs `collective`, an all_reduce, in place in symmetric memory: each rank
// combines its part of all tensors and writes the result to all of them. If
// that fails, other ranks can no longer write to this one's tensor
// (Regions::Withdraw). Returns false, on all ranks, if some tensor is not in
// symmetric memory; then nothing was done.
StatusOr<bool> RunSymmetricAllReduce(ShmContext& context,
                                     const Collective& collective);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_SYMMETRIC_ALL_REDUCE_H_
