#ifndef MUSTER_DATAPLANE_CPU_COLLECTIVES_SELECTION_H_
#define MUSTER_DATAPLANE_CPU_COLLECTIVES_SELECTION_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "dataplane/collective.h"

namespace muster::dataplane::cpu {

// For collectives that have several algorithms. See dataplane/MEASUREMENTS.md.
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

// What the table says for `kind` (all_reduce or broadcast) of `bytes`: the same
// on every rank. MUSTER_GLOO_ALGORITHM, a name, goes before it in collectives
// that have such an algorithm; `muster-bench --tune` measures with it. It must
// be the same on every rank.
Algorithm SelectAlgorithm(CollectiveKind kind, int world_size, size_t bytes);

// kInvalidArgument: the variable's value, `forced`, names no algorithm.
Status CheckForced(absl::string_view forced);

// The same for a given value of that variable.
Algorithm SelectAlgorithm(CollectiveKind kind, int world_size, size_t bytes,
                          absl::string_view forced);

// Where the bytes of a stream go, if it may go through Gloo at all
// (Exchange::PathFor). TcpConnections are faster until the messages are so
// large that a second thread, Gloo's, pays.
enum class Path : uint8_t { kLines, kGloo };

// For messages of `bytes` between two ranks, both of which know that number.
Path PathOf(CollectiveKind kind, size_t bytes);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_COLLECTIVES_SELECTION_H_
