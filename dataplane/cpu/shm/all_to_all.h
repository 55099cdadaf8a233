// all_to_all among the ranks of one host: through the RoundBuffer, or from
// tensor to tensor.

#ifndef MUSTER_DATAPLANE_CPU_SHM_ALL_TO_ALL_H_
#define MUSTER_DATAPLANE_CPU_SHM_ALL_TO_ALL_H_

#include <cstddef>
#include <optional>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/shm/rounds.h"

namespace muster::dataplane::shm {

struct AllToAllOptions {
  // This rank shows where what it gives is, if all of that is where this says,
  // and more than a little. Each rank as it likes; null: not.
  std::optional<Scope> origins = std::nullopt;
  // Hears what the first rank says beside (ShmContext).
  bool hears = false;
};

// The same on all ranks.
struct AllToAllOutcome {
  // All have what they take.
  bool is_done = true;
  // Some have shown where theirs is, all of them in symmetric memory.
  bool is_mapped = false;
};

// Runs `collective`, an all_to_all. Sizes may differ, and no rank knows what
// the others have before it has seen their first round. What a rank gives it
// shows on the round buffer, as others do (staged.h), or where it is.
//
// It is not done, on all ranks, if `reads_rather`, the same on all, says that
// one goes better if all show where theirs is: it is to be run anew so. Asked
// if the first round does not hold it, with the bytes that the rank that gives
// most has for all, if it had for itself as much as for each other one.
StatusOr<AllToAllOutcome> RunAllToAll(
    ShmContext& context, const Collective& collective,
    const AllToAllOptions& options,
    absl::FunctionRef<bool(size_t bytes)> reads_rather);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_ALL_TO_ALL_H_
