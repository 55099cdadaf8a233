#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_

#include "absl/status/status.h"
#include "dataplane/backends/shm/rounds.h"
#include "dataplane/backends/shm/selection.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm_internal {

// Runs `collective`, of any size, but no all_to_all (all_to_all.h), through
// what the ranks show on the board: copied in by who has it, and out by who
// wants it. An all_reduce goes by `algorithm`; kOneRound as far as that holds
// it.
absl::Status RunStaged(Workshop& shop, const Collective& collective,
                       Algorithm algorithm);

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_
