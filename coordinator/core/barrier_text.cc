#include "coordinator/core/barrier_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/rank_ranges.h"

namespace muster::coordinator::core {
namespace {

absl::string_view CauseName(MissingCause cause) {
  switch (cause) {
    case MissingCause::kLate:
      return "late";
    case MissingCause::kLost:
      return "lost";
    case MissingCause::kFailed:
      return "failed";
    case MissingCause::kLeft:
      return "left";
    case MissingCause::kReplaced:
      return "replaced";
  }
  return "unknown";
}

// `1590 more (6-799, 801-1599)`: the missing ranks that a text does not name.
// Empty: none.
std::string UnnamedText(const BarrierResult& result) {
  std::vector<Rank> ranks;
  for (size_t i = kRanksInTextMax; i < result.missing.size(); ++i) {
    ranks.push_back(result.missing[i].rank);
  }
  ForEachRank(result.others, [&](Rank rank) { ranks.push_back(rank); });
  if (ranks.empty()) return "";
  std::sort(ranks.begin(), ranks.end());
  return absl::StrCat(ranks.size(), " more (",
                      RangesText(ToRanges(ranks), kRanksInTextMax), ")");
}

}  // namespace

std::string BarrierTitle(absl::string_view group, absl::string_view barrier,
                         int64_t instance) {
  std::string title = absl::StrCat("barrier ", base::Quote(barrier));
  if (instance > 0) absl::StrAppend(&title, " #", instance);
  if (!group.empty()) absl::StrAppend(&title, " on group ", base::Quote(group));
  return title;
}

std::string MissingText(const MissingRank& missing, Duration lease) {
  std::string text = absl::StrCat(missing.rank.value(), " (", missing.host);
  if (missing.cause == MissingCause::kReplaced) {
    absl::StrAppend(&text, ", ", base::Printable(missing.cause_text));
  } else if (missing.cause != MissingCause::kLate) {
    absl::StrAppend(&text, ", ", CauseName(missing.cause), ": ",
                    base::Printable(missing.cause_text));
  } else if (missing.last_heard_ago > lease / 3) {
    absl::StrAppend(&text, ", last heard ",
                    FormatDuration(missing.last_heard_ago), " ago");
  }
  if (!missing.last_progress.empty()) {
    absl::StrAppend(&text, ", ", missing.last_progress);
  }
  absl::StrAppend(&text, ")");
  return text;
}

Status BarrierStatus(const BarrierResult& result, absl::string_view conflict,
                     Generation generation, Duration lease) {
  if (result.outcome == BarrierOutcome::kReleased) return OkStatus();
  const std::string title =
      BarrierTitle(result.group, result.barrier, result.instance);
  if (result.outcome == BarrierOutcome::kConflict) {
    return InvalidArgumentError(absl::StrCat(title, ": ", conflict));
  }
  if (result.outcome == BarrierOutcome::kAborted) {
    return AbortedError(absl::StrCat(title, ": generation ", generation.value(),
                                     " is over; rendezvous again"));
  }
  std::string text =
      absl::StrCat(title, ": ", result.arrived, " of ", result.expected,
                   " ranks arrived in ", FormatDuration(result.waited),
                   result.expected - result.arrived == 1 ? "; missing rank "
                                                         : "; missing ranks ");
  for (size_t i = 0; i < std::min(result.missing.size(), kRanksInTextMax);
       ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ",
                    MissingText(result.missing[i], lease));
  }
  if (const std::string more = UnnamedText(result); !more.empty()) {
    absl::StrAppend(&text, " and ", more);
  }
  absl::StrAppend(&text, "; first to arrive: rank ",
                  result.first_to_arrive.value());
  return result.outcome == BarrierOutcome::kTimedOut
             ? DeadlineExceededError(text)
             : AbortedError(text);
}

}  // namespace muster::coordinator::core
