#include "dataplane/culprit.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace muster::dataplane {

void SetCulpritRank(absl::Status& status, int rank) {
  status.SetPayload(kCulpritRankUrl, absl::Cord(absl::StrCat(rank)));
}

std::optional<int> CulpritRank(const absl::Status& status) {
  const auto payload = status.GetPayload(kCulpritRankUrl);
  int rank = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) {
    return std::nullopt;
  }
  return rank;
}

}  // namespace muster::dataplane
