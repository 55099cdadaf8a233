#ifndef MUSTER_DATAPLANE_CPU_COLLECTIVES_SELECTION_H_
#define MUSTER_DATAPLANE_CPU_COLLECTIVES_SELECTION_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "dataplane/collective.h"

namespace muster::dataplane::cpu {

// The algorithms of collectives that have several. See
// dataplane/MEASUREMENTS.md.
enum class Algorithm : uint8_t {
  // all_reduce
  kDoubling,
  kPairwise,
  kRing,
  // broadcast
  kTree,
  kChain,
};

// "doubling", ...
const char* AlgorithmName(Algorithm algorithm);

// Selects the algorithm for `kind` (all_reduce or broadcast) of `bytes` from a
// table; the result is the same on every rank. The environment variable
// MUSTER_GLOO_ALGORITHM, an algorithm's name, overrides the table for
// collectives that have such an algorithm; `muster-bench --tune` measures with
// it. It must be the same on every rank.
Algorithm SelectAlgorithm(CollectiveKind kind, int world_size, size_t bytes);

// Errors: kInvalidArgument (`forced`, the variable's value, names no
// algorithm).
Status CheckForced(absl::string_view forced);

// As above, for a given value of that variable.
Algorithm SelectAlgorithm(CollectiveKind kind, int world_size, size_t bytes,
                          absl::string_view forced);

// The transport of a stream, if it may use Gloo at all (Exchange::PathFor).
// TcpConnections are faster until messages are so large that Gloo's second
// thread pays.
enum class Path : uint8_t { kLines, kGloo };

// The path for messages of `bytes` between two ranks that both know that size.
Path ChoosePath(CollectiveKind kind, size_t bytes);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_COLLECTIVES_SELECTION_H_
