#ifndef MUSTER_DATAPLANE_CPU_SHM_STAGED_H_
#define MUSTER_DATAPLANE_CPU_SHM_STAGED_H_

#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/shm/rounds.h"
#include "dataplane/cpu/shm/selection.h"

namespace muster::dataplane::shm {

using StagedRun = Status (*)(ShmContext& context, const Collective& collective);

// What runs `collective`, and others of its kind and size, through what the
// ranks show on the board: copied in by who has it, and out by who wants it. An
// all_reduce goes by `algorithm`; kOneRound as far as that holds it. Null of an
// all_to_all (all_to_all.h).
StagedRun FindStaged(const Collective& collective, Algorithm algorithm);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_STAGED_H_
