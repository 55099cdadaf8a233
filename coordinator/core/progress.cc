#include "coordinator/core/progress.h"

#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {

std::string DescribeProgress(const std::vector<GroupProgress>& progress,
                             Duration age, absl::string_view group) {
  const GroupProgress* shown = nullptr;
  for (const GroupProgress& each : progress) {
    if (!group.empty() && each.group == group) {
      shown = &each;
      break;
    }
    const bool busier =
        shown == nullptr || (shown->current.empty() && !each.current.empty());
    const bool longer = shown != nullptr && !each.current.empty() &&
                        each.current_age > shown->current_age;
    if (busier || longer) shown = &each;
  }
  if (shown == nullptr) return "";
  std::string text =
      absl::StrCat("group \"", shown->group, "\": ", shown->last_completed,
                   " of ", shown->last_enqueued, " done");
  if (!shown->current.empty()) {
    absl::StrAppend(&text, ", in ", shown->current, " for ",
                    FormatDuration(SaturatingSum(shown->current_age, age)));
  }
  if (progress.size() > 1) {
    absl::StrAppend(&text, " (", progress.size() - 1, " more group",
                    progress.size() == 2 ? ")" : "s)");
  }
  return text;
}

}  // namespace muster::coordinator::core
