#ifndef MUSTER_DATAPLANE_CULPRIT_H_
#define MUSTER_DATAPLANE_CULPRIT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace muster::dataplane {

// The ranks, in the group of the failed collective, whose silence, death or
// other wishes caused an error: what a program reads instead of the text. Kept
// as a payload of the status (decimal numbers, separated by commas, under this
// type URL).
inline constexpr char kCulpritRanksUrl[] = "muster/culprit_ranks";

// `ranks` ascend; without any the error has no culprit.
void SetCulpritRanks(Status& status, const std::vector<int>& ranks);
void SetCulpritRank(Status& status, int rank);

// Empty when the error has no culprit or none is known.
std::vector<int> CulpritRanks(const Status& status);

// The first of them.
std::optional<int> CulpritRank(const Status& status);

// An error with this payload is no symptom of something else but what a rank
// has decided for the whole group: a backend that tells it to other ranks gives
// it to them word for word, and they end with it at once.
inline constexpr char kVerdictUrl[] = "muster/verdict";
inline constexpr size_t kVerdictBytesMax = 128;

// `bytes`, at most kVerdictBytesMax, are for whoever made the error: they reach
// the other ranks as they are.
void SetVerdict(Status& status, absl::string_view bytes);

// The bytes; nothing when the error is no verdict.
std::optional<std::string> Verdict(const Status& status);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_CULPRIT_H_
