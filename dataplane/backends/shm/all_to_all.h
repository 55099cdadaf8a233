#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_ALL_TO_ALL_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_ALL_TO_ALL_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/shm/rounds.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm_internal {

// Runs `collective`, an all_to_all. Sizes may differ, and no rank knows what
// the others have before it has seen their first round. What a rank gives it
// shows on the board, as RunStaged does, or, if it `shows_origins` and the
// system lets others read all of that, where it is; each rank as it likes.
//
// False, on all ranks: `reads_rather`, the same on all, has said that one in
// which the rank that has most has so many bytes for all goes better from
// tensor to tensor. It is to be done so. Asked when all is known and the first
// round does not hold it.
absl::StatusOr<bool> RunAllToAll(Workshop& shop, const Collective& collective,
                                 bool shows_origins,
                                 absl::FunctionRef<bool(size_t)> reads_rather);

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_ALL_TO_ALL_H_
