// Selects the algorithm of a collective: the table, for connections and for
// memory that ranks share, and the settings that override it.

#ifndef MUSTER_DATAPLANE_CPU_COLLECTIVES_SELECTION_H_
#define MUSTER_DATAPLANE_CPU_COLLECTIVES_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::cpu {

// The medium through which the data of a collective goes.
enum class Medium : uint8_t {
  kConnections,
  // Memory that the ranks of a host share; the tensors are in ordinary memory.
  kSharedMemory,
  // The same; the tensors are in symmetric memory.
  kSymmetricMemory,
};

// The algorithms of collectives that have several. See
// dataplane/MEASUREMENTS.md and dataplane/cpu/shm/README.md.
enum class Algorithm : uint8_t {
  // The table's choice.
  kFastest,
  // On connections: all_reduce.
  kDoubling,
  kPairwise,
  kRing,
  // On connections: broadcast.
  kTree,
  kChain,
  // Within a host: through published data, copied in and out.
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
    "",       "doubling",  "pairwise", "ring",        "tree",     "chain",
    "staged", "one_round", "by_parts", "single_copy", "symmetric"};
static_assert(std::size(kAlgorithmNames) ==
              static_cast<size_t>(Algorithm::kSymmetric) + 1);

// "staged", ...; "" for kFastest.
constexpr const char* AlgorithmName(Algorithm algorithm) {
  return kAlgorithmNames[static_cast<size_t>(algorithm)];
}

// The environment variable whose value, an algorithm's name, overrides the
// table for collectives that have such an algorithm; `muster-bench --tune`
// measures with it. It must be the same on every rank.
const char* AlgorithmVariable(Medium medium);

// The algorithm that `value`, of that variable, names; kFastest if it is empty.
// Errors: kInvalidArgument, with the variable and the known names.
StatusOr<Algorithm> FindAlgorithm(Medium medium, absl::string_view value);

// As above, with the variable's value.
StatusOr<Algorithm> FindForcedAlgorithm(Medium medium);

struct Circumstances {
  Medium medium = Medium::kConnections;
  int world_size = 0;
  // Within a host: it has more ranks than processors.
  bool is_crowded = false;
  // Within a host: see shm::Calibration.
  bool reads_are_fast = false;
  // The size of all ranks' parts together. All ranks that know it select alike.
  size_t bytes = 0;
};

// Rows that `muster-bench --tune=FILE` has measured. They go before the table's
// for the operations, numbers of ranks and sizes that they name. The format
// stands in worker/bench/README.md.
class Tuning {
 public:
  // `file` is for errors: kInvalidArgument, with the file and the line.
  static StatusOr<Tuning> Parse(absl::string_view text, absl::string_view file);

  // The rows of the file that MUSTER_TUNE_FILE names; none if it is not set.
  // Read once per process.
  static const StatusOr<Tuning>& Loaded();

  // The measured algorithm, or nullopt.
  std::optional<Algorithm> Find(CollectiveKind kind,
                                const Circumstances& circumstances) const;

  // Differs for other rows, so that ranks can check that theirs are the same.
  // Zero: no rows.
  uint64_t digest() const { return digest_; }

 private:
  struct Row {
    // Also its other forms.
    CollectiveKind kind;
    Medium medium;
    int ranks;
    std::optional<bool> is_crowded;
    size_t bytes_min;
    size_t bytes_max;
    Algorithm algorithm;
  };
  static StatusOr<Row> ParseRow(absl::string_view line);

  std::vector<Row> rows_;
  uint64_t digest_ = 0;
};

// Selects from the rows of `tuning` (null: those loaded), or else from the
// table; never kFastest. `forced` overrides both if `kind` has such an
// algorithm. On connections only all_reduce and broadcast have several.
Algorithm SelectAlgorithm(CollectiveKind kind,
                          const Circumstances& circumstances,
                          Algorithm forced = Algorithm::kFastest,
                          const Tuning* tuning = nullptr);

// As above, on connections, with the variable's algorithm.
Algorithm SelectOnConnections(CollectiveKind kind, int world_size,
                              size_t bytes);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_COLLECTIVES_SELECTION_H_
