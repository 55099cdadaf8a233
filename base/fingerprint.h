// The arguments on which ranks must agree in a collective, and their
// differences.

#ifndef MUSTER_BASE_FINGERPRINT_H_
#define MUSTER_BASE_FINGERPRINT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "muster/base/status.h"

namespace muster::base {

// The arguments of one rank's collective, for comparison with other ranks'. Not
// for sends and receives.
struct Fingerprint {
  // Properties that are equal on all ranks, by their names in texts: "op",
  // "sequence", "dtype", "device", "shape", "reduce op", "root". The kind
  // decides which of them a collective has. (One shape may stand for several.)
  // If the rank refuses the collective, only "refused": the reason, on one
  // line.
  std::map<std::string, std::string> common{};
  // all_to_all and all_to_all_single: elements sent to, and received from, each
  // rank.
  std::vector<int64_t> given{};
  std::vector<int64_t> taken{};
  // For people: `all_reduce #12 float32[8] sum`.
  std::string description{};

  std::string Serialize() const;
  static StatusOr<Fingerprint> Parse(absl::string_view text);
};

struct Mismatch {
  std::string text;
  std::vector<int> culprits;  // ranks, ascending
};

// Nothing if the fingerprints, one per rank, match. Otherwise the same text on
// all ranks: the ranks that refuse and why, or what most ranks run, which ranks
// differ, and in what. The culprits are the ranks that refuse or differ; all
// ranks if no more than half run the same; if only splits do not match, the
// ranks that disagree with the most ranks.
std::optional<Mismatch> FindMismatch(
    absl::Span<const Fingerprint> fingerprints);

// Finds the ranks to blame when ranks did not run the same collective and some
// have not reported. `fingerprints` has, by rank, the collective that each rank
// was in when the group failed; `suspects` are the ranks that the failure
// blames. If all ranks were in one collective, the result is FindMismatch's.
// Otherwise the culprits are the ranks that differ from more than half of all
// ranks or, without such a majority, the suspects and all ranks in the
// collective. Nothing: nothing speaks against blaming the suspects.
std::optional<Mismatch> FindOdd(const std::map<int, Fingerprint>& fingerprints,
                                int world_size,
                                const std::vector<int>& suspects);

}  // namespace muster::base

#endif  // MUSTER_BASE_FINGERPRINT_H_
