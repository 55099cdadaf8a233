#ifndef MUSTER_DATAPLANE_CULPRIT_H_
#define MUSTER_DATAPLANE_CULPRIT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::dataplane {

// Type URL of the status payload that names the culprits: the ranks, in the
// group of the failed collective, whose silence, death or different arguments
// caused the error. Programs read it instead of the text. It is decimal
// numbers, separated by commas.
inline constexpr char kCulpritRanksUrl[] = "muster/culprit_ranks";

// `ranks` ascend. If empty, the error has no culprit.
void SetCulpritRanks(Status& status, const std::vector<int>& ranks);
void SetCulpritRank(Status& status, int rank);

// Empty when the error has no culprit or none is known.
std::vector<int> CulpritRanks(const Status& status);

// The lowest of the culprit ranks.
std::optional<int> CulpritRank(const Status& status);

// Marks an error as a verdict: a rank's decision for the whole group, not a
// symptom of another failure. A backend that passes it to other ranks passes it
// unchanged, and they fail with it at once.
inline constexpr char kVerdictUrl[] = "muster/verdict";
inline constexpr size_t kVerdictBytesMax = 128;

// `bytes`, at most kVerdictBytesMax, reach the other ranks unchanged. Only the
// maker of the error interprets them.
void SetVerdict(Status& status, absl::string_view bytes);

// The bytes; empty if the error is not a verdict.
std::optional<std::string> Verdict(const Status& status);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_CULPRIT_H_
