#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_

#include "absl/status/status.h"
#include "dataplane/backends/shm/rounds.h"
#include "dataplane/backends/shm/selection.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm_internal {

// Runs `collective`, of any size, through what the ranks show on the board:
// copied in by who has it, and out by who wants it.
// An all_reduce goes by `algorithm`; kOneRound as far as that holds it. An
// all_to_all stops after its first round, on all ranks, if they see in that
// that it goes better from tensor to tensor: it is to be done so, and
// `has_stopped` says that; null: it goes on all the same.
absl::Status RunStaged(Workshop& shop, const Collective& collective,
                       Algorithm algorithm, bool* has_stopped);

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_
