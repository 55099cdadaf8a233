#include "coordinator/core/progress.h"

#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {

std::string DescribeProgress(const std::vector<GroupProgress>& progress,
                             Duration age) {
  const GroupProgress* shown = nullptr;
  for (const GroupProgress& group : progress) {
    const bool busier =
        shown == nullptr || (shown->current.empty() && !group.current.empty());
    const bool longer = shown != nullptr && !group.current.empty() &&
                        group.current_age > shown->current_age;
    if (busier || longer) shown = &group;
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
    absl::StrAppend(&text, " (", progress.size() - 1, " more groups)");
  }
  return text;
}

}  // namespace muster::coordinator::core
