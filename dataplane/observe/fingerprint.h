// What ranks must agree on before they run a collective, and how they differ.

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

// Of one rank's side of a collective that is not a send or receive.
struct Fingerprint {
  // What is the same on all ranks, by what it is called in texts: "op",
  // "sequence", "dtype", "device", "shape", "reduce op", "root". Which of them
  // a collective has depends on its kind. (A shape may stand for several.)
  // "refused", on one line: why the rank does not run it, and nothing else.
  std::map<std::string, std::string> common;
  // Of all_to_all and all_to_all_single: elements given to each rank, and taken
  // from each.
  std::vector<int64_t> given;
  std::vector<int64_t> taken;
  // Collective::Describe().
  std::string description;

  // Validate may refuse `collective`: in a group that has failed, nobody asks.
  static Fingerprint Of(const Collective& collective, int world_size);

  // Of a rank that does not run `collective`, because of `why`.
  static Fingerprint Refusal(const Collective& collective,
                             absl::string_view why);

  std::string Serialize() const;
  static StatusOr<Fingerprint> Parse(absl::string_view text);
};

// OK if these, one of each rank, go together. Otherwise kInvalidArgument, the
// same on all ranks: who refuses, and why; or what most of them run, who
// differs, and in what. The culprits are all who refuse or differ, or all ranks
// where no more than half run the same; where splits do not go together, those
// who disagree with the most ranks.
Status Compare(absl::Span<const Fingerprint> fingerprints);

// Whom ranks that did not run the same have to blame, of which some may have
// said nothing. `fingerprints`: by rank, of what each was in when the group
// failed. `suspects`: whom the failure blames. As Compare where all ranks were
// in one collective; else with the same culprits, so far as they are known:
// kInvalidArgument with them, those who differ from more than half of all
// ranks, or without such a majority the suspects and all who were in the
// collective. OK: nothing is known against the suspects' blame.
Status FindOdd(const std::map<int, Fingerprint>& fingerprints, int world_size,
               const std::vector<int>& suspects);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_FINGERPRINT_H_
