#include "coordinator/core/rank_ranges.h"

#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {

std::string RangesText(const RankRanges& ranges, size_t count_max) {
  std::string text;
  uint32_t end = 0;
  for (size_t i = 0; i + 1 < ranges.size(); i += 2) {
    if (i / 2 == count_max) {
      absl::StrAppend(&text, ", ...");
      break;
    }
    const uint32_t first = end + ranges[i];
    end = first + ranges[i + 1];
    absl::StrAppend(&text, i == 0 ? "" : ", ", first);
    if (end - first > 1) absl::StrAppend(&text, "-", end - 1);
  }
  return text;
}

}  // namespace muster::coordinator::core
