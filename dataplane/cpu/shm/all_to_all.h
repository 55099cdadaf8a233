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
  // If set, this rank publishes the addresses of its inputs instead of their
  // elements, if all lie in this scope and they are not small. Each rank may
  // decide on its own.
  std::optional<Scope> origins = std::nullopt;
  // Reads the first rank's hint (ShmContext).
  bool hears = false;
};

// The same on all ranks.
struct AllToAllOutcome {
  // All ranks have their outputs.
  bool is_done = true;
  // Some ranks have published addresses, all of them in symmetric memory.
  bool is_mapped = false;
};

// Runs `collective`, an all_to_all. Sizes may differ, and a rank learns the
// others' sizes from their first round. A rank publishes its inputs on the
// round buffer, as in staged.h, or their addresses.
//
// Returns is_done = false, on all ranks, if `reads_rather` returns true, as it
// must on all or none: the caller then runs it again with addresses. It is
// called if the data exceeds one round, with the bytes that the rank with the
// most data gives to all ranks (itself counted as an average rank).
StatusOr<AllToAllOutcome> RunAllToAll(
    ShmContext& context, const Collective& collective,
    const AllToAllOptions& options,
    absl::FunctionRef<bool(size_t bytes)> reads_rather);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_ALL_TO_ALL_H_
