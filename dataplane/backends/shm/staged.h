#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_

#include <cstddef>
#include <limits>

#include "absl/status/statusor.h"
#include "dataplane/backends/shm/rounds.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm_internal {

inline constexpr size_t kAnyRounds = std::numeric_limits<size_t>::max();

// Runs `collective` through what the ranks show on the board: copied in by
// who has it, and out by who wants it. False, on all ranks: it would take more
// than `rounds_max` rounds, and nothing was done.
absl::StatusOr<bool> RunStaged(Workshop& shop, const Collective& collective,
                               size_t rounds_max);

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_STAGED_H_
