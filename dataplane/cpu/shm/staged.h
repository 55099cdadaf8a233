#ifndef MUSTER_DATAPLANE_CPU_SHM_STAGED_H_
#define MUSTER_DATAPLANE_CPU_SHM_STAGED_H_

#include "dataplane/cpu/shm/rounds.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

using StagedRun = Status (*)(ShmContext& context, const Collective& collective);

// Returns the function that runs collectives of `kind` through the RoundBuffer:
// each rank copies its data in, and each receiver copies it out. Null for an
// all_to_all (all_to_all.h), and for kinds that have no such algorithm.
StagedRun FindStaged(CollectiveKind kind);

// As above, for `collective` and others of its kind and size. An all_reduce
// uses `algorithm`; kOneRound only as far as one round can hold it.
StagedRun FindStaged(const Collective& collective, Algorithm algorithm);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_STAGED_H_
