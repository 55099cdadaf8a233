// all_to_all among the ranks of one host: through the RoundBuffer, or from
// tensor to tensor.

#ifndef MUSTER_DATAPLANE_CPU_SHM_ALL_TO_ALL_H_
#define MUSTER_DATAPLANE_CPU_SHM_ALL_TO_ALL_H_

#include <cstddef>
#include <optional>

#include "absl/functional/function_ref.h"
#include "dataplane/cpu/shm/rounds.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

// Runs `collective`, an all_to_all. Sizes may differ, and a rank learns the
// others' sizes from their first round. A rank publishes its inputs on the
// round buffer, as in staged.h, or their addresses: if `origins` is set, all of
// its inputs lie in that scope, and they are not small. Each rank may decide on
// its own.
//
// Returns false, on all ranks, without a result, if `reads_rather` returns
// true, as it must on all or none: the caller then runs it again with
// addresses. It is called if the data exceeds one round, with the bytes that
// the rank with the most data gives to all ranks (itself counted as an average
// rank).
StatusOr<bool> RunAllToAll(ShmContext& context, const Collective& collective,
                           std::optional<Scope> origins,
                           absl::FunctionRef<bool(size_t bytes)> reads_rather);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_ALL_TO_ALL_H_
