#include "dataplane/culprit.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

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

void SetVerdict(absl::Status& status, absl::string_view bytes) {
  status.SetPayload(kVerdictUrl, absl::Cord(bytes.substr(0, kVerdictBytesMax)));
}

std::optional<std::string> Verdict(const absl::Status& status) {
  const auto payload = status.GetPayload(kVerdictUrl);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

}  // namespace muster::dataplane
