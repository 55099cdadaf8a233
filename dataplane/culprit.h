#ifndef MUSTER_DATAPLANE_CULPRIT_H_
#define MUSTER_DATAPLANE_CULPRIT_H_

#include <optional>

#include "absl/status/status.h"

namespace muster::dataplane {

// The rank, in the group of the failed collective, whose silence or death
// caused an error: what a program reads instead of the text. Kept as a payload
// of the status (decimal digits under this type URL).
inline constexpr char kCulpritRankUrl[] = "muster/culprit_rank";

void SetCulpritRank(absl::Status& status, int rank);

// Nothing when the error has no culprit or none is known.
std::optional<int> CulpritRank(const absl::Status& status);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_CULPRIT_H_
