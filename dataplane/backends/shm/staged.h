#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/shm/rounds.h"
#include "dataplane/backends/shm/selection.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm_internal {

// Whether an all_to_all goes on here, of which the ranks see in their first
// round, and all alike, that it does not fit that, and how many bytes the one
// that has most has for all ranks.
using GoesOn = absl::FunctionRef<bool(size_t bytes)>;

// Runs `collective`, of any size, through what the ranks show on the board:
// copied in by who has it, and out by who wants it.
// An all_reduce goes by `algorithm`; kOneRound as far as that holds it. False,
// on all ranks: it did not go on, and is to be done otherwise.
absl::StatusOr<bool> RunStaged(Workshop& shop, const Collective& collective,
                               Algorithm algorithm, GoesOn goes_on);

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_
