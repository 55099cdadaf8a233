// The arguments on which ranks must agree in a collective, and their
// differences.

#ifndef MUSTER_DATAPLANE_OBSERVE_FINGERPRINT_H_
#define MUSTER_DATAPLANE_OBSERVE_FINGERPRINT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "dataplane/collective.h"

namespace muster::dataplane {

// The arguments of one rank's collective, for comparison with other ranks'. Not
// for sends and receives.
struct Fingerprint {
  // Properties that are equal on all ranks, by their names in texts: "op",
  // "sequence", "dtype", "device", "shape", "reduce op", "root". The kind
  // decides which of them a collective has. (One shape may stand for several.)
  // If the rank refuses the collective, only "refused": the reason, on one
  // line.
  std::map<std::string, std::string> common;
  // all_to_all and all_to_all_single: elements sent to, and received from, each
  // rank.
  std::vector<int64_t> given;
  std::vector<int64_t> taken;
  // Collective::Describe().
  std::string description;

  // Validate may have refused `collective`: a rank of a failed group still
  // tells what it ran.
  static Fingerprint Of(const Collective& collective, int world_size);

  // For a rank that refuses `collective` because of `why`.
  static Fingerprint Refusal(const Collective& collective,
                             absl::string_view why);

  std::string Serialize() const;
  static StatusOr<Fingerprint> Parse(absl::string_view text);
};

// OK if the fingerprints, one per rank, match. Otherwise kInvalidArgument, with
// the same text on all ranks: the ranks that refuse and why, or what most ranks
// run, which ranks differ, and in what. The culprits are the ranks that refuse
// or differ; all ranks if no more than half run the same; if only splits do not
// match, the ranks that disagree with the most ranks.
Status Compare(absl::Span<const Fingerprint> fingerprints);

// Finds the ranks to blame when ranks did not run the same collective and some
// have not reported. `fingerprints` has, by rank, the collective that each rank
// was in when the group failed; `suspects` are the ranks that the failure
// blames. If all ranks were in one collective, the result is that of Compare.
// Otherwise it is kInvalidArgument with these culprits: the ranks that differ
// from more than half of all ranks or, without such a majority, the suspects
// and all ranks in the collective. OK: nothing speaks against blaming the
// suspects.
Status FindOdd(const std::map<int, Fingerprint>& fingerprints, int world_size,
               const std::vector<int>& suspects);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_FINGERPRINT_H_
