#include "dataplane/culprit.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace muster::dataplane {

void SetCulpritRanks(Status& status, const std::vector<int>& ranks) {
  if (ranks.empty()) {
    status.ErasePayload(kCulpritRanksUrl);
  } else {
    status.SetPayload(kCulpritRanksUrl, absl::StrJoin(ranks, ","));
  }
}

void SetCulpritRank(Status& status, int rank) {
  SetCulpritRanks(status, {rank});
}

std::vector<int> CulpritRanks(const Status& status) {
  const auto payload = status.GetPayload(kCulpritRanksUrl);
  std::vector<int> ranks;
  if (!payload.has_value()) return ranks;
  for (const absl::string_view word : absl::StrSplit(*payload, ',')) {
    int rank = 0;
    if (!absl::SimpleAtoi(word, &rank)) return {};
    ranks.push_back(rank);
  }
  return ranks;
}

std::optional<int> CulpritRank(const Status& status) {
  const std::vector<int> ranks = CulpritRanks(status);
  if (ranks.empty()) return std::nullopt;
  return ranks.front();
}

void SetVerdict(Status& status, absl::string_view bytes) {
  status.SetPayload(kVerdictUrl,
                    std::string(bytes.substr(0, kVerdictBytesMax)));
}

std::optional<std::string> Verdict(const Status& status) {
  const auto payload = status.GetPayload(kVerdictUrl);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

}  // namespace muster::dataplane
