#include "coordinator/core/progress.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace muster::coordinator::core {
namespace {

// The first one if no group is in a collective. Null: there is no progress.
const GroupProgress* LongestInCollective(
    const std::vector<GroupProgress>& progress) {
  const GroupProgress* longest = nullptr;
  for (const GroupProgress& each : progress) {
    const bool busier = longest == nullptr ||
                        (longest->current.empty() && !each.current.empty());
    const bool longer = longest != nullptr && !each.current.empty() &&
                        each.current_age > longest->current_age;
    if (busier || longer) longest = &each;
  }
  return longest;
}

}  // namespace

std::string DescribeProgress(const std::vector<GroupProgress>& progress,
                             Duration age, absl::string_view group) {
  const GroupProgress* const longest = LongestInCollective(progress);
  if (longest == nullptr) return "";
  const GroupProgress* shown = longest;
  for (const GroupProgress& each : progress) {
    if (!group.empty() && each.group == group) {
      shown = &each;
      break;
    }
  }
  const auto running_for = [&](const GroupProgress& one) {
    return FormatDuration(SaturatingSum(one.current_age, age));
  };
  std::string text = absl::StrCat("group ", base::Quote(shown->group), ": ",
                                  shown->last_completed, " of ",
                                  shown->last_enqueued, " done");
  if (!shown->current.empty()) {
    absl::StrAppend(&text, ", in ", shown->current, " for ",
                    running_for(*shown));
  }
  size_t more = progress.size() - 1;
  if (shown->current.empty() && !longest->current.empty()) {
    absl::StrAppend(&text, "; in ", longest->current, " on group ",
                    base::Quote(longest->group), " for ",
                    running_for(*longest));
    --more;
  }
  if (more > 0) {
    absl::StrAppend(&text, " (", more, " more group", more == 1 ? ")" : "s)");
  }
  return text;
}

int64_t CountBytes(const std::vector<GroupProgress>& progress) {
  size_t bytes = 0;
  for (const GroupProgress& each : progress) {
    bytes += sizeof(each) + each.group.size() + each.current.size();
  }
  return static_cast<int64_t>(bytes);
}

void KeepLongest(std::vector<GroupProgress>& progress) {
  if (progress.size() <= 1) return;
  std::vector<GroupProgress> longest = {*LongestInCollective(progress)};
  progress = std::move(longest);
}

}  // namespace muster::coordinator::core
