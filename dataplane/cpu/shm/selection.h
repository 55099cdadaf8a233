// Selects the algorithm of a collective: the tables, and the setting that
// overrides them.

#ifndef MUSTER_DATAPLANE_CPU_SHM_SELECTION_H_
#define MUSTER_DATAPLANE_CPU_SHM_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "dataplane/collective.h"

namespace muster::dataplane::shm {

// The algorithms of collectives within a host. See README.md.
enum class Algorithm : uint8_t {
  // The table's choice.
  kFastest,
  // Through published data, copied in and out.
  kStaged,
  // all_reduce, staged: every rank combines everything, or each its part.
  kOneRound,
  kByParts,
  // From tensor to tensor, by system reads.
  kSingleCopy,
  // From tensor to tensor in symmetric memory.
  kSymmetric,
};

inline constexpr const char* kAlgorithmNames[] = {
    "", "staged", "one_round", "by_parts", "single_copy", "symmetric"};
static_assert(std::size(kAlgorithmNames) ==
              static_cast<size_t>(Algorithm::kSymmetric) + 1);

// "staged", ...; "" for kFastest.
constexpr const char* AlgorithmName(Algorithm algorithm) {
  return kAlgorithmNames[static_cast<size_t>(algorithm)];
}

// Errors: kInvalidArgument, with the known names.
StatusOr<Algorithm> FindAlgorithm(absl::string_view name);

// The memory in which the tensors of a collective are.
enum class Memory : uint8_t { kOrdinary, kSymmetric };

struct Circumstances {
  Memory memory = Memory::kOrdinary;
  int world_size = 0;
  // The host has more ranks than processors.
  bool is_crowded = false;
  // The size of all ranks' parts together if all ranks know it, else 0, so that
  // all select alike. In an all_to_all they know it after a round.
  size_t bytes = 0;
};

// Selects from the tables; never kFastest. `forced` overrides them if `kind`
// has such an algorithm: `muster-bench --tune` measures with it.
Algorithm SelectAlgorithm(CollectiveKind kind,
                          const Circumstances& circumstances, Algorithm forced);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_SELECTION_H_
