#include "client/tools/diagnose/waits.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/convert.h"
#include "client/control/group_name.h"
#include "client/stores/store_rules.h"
#include "client/tools/diagnose/rank_progress.h"
#include "client/tools/diagnose/tool_text.h"

namespace muster::tools {
namespace {

Waits::Wait Find(const std::map<int, Waits::Wait>& waits, int rank) {
  const auto found = waits.find(rank);
  return found == waits.end() ? Waits::Wait() : found->second;
}

}  // namespace

std::vector<int> ArrivedIn(const v1::GetJobResponse& job,
                           const v1::OpenBarrier& barrier) {
  std::set<int> missing;
  for (const v1::MemberInfo& member : barrier.missing()) {
    missing.insert(member.rank());
  }
  for (const RankRange& range : internal::FromProto(barrier.others())) {
    for (int i = 0; i < range.count; ++i) missing.insert(range.first + i);
  }
  if (static_cast<int>(missing.size()) !=
      barrier.expected() - barrier.arrived()) {
    return {};
  }
  std::vector<int> arrived;
  for (const RankProgress& place : FindRankProgress(job, barrier.group())) {
    if (!missing.contains(place.rank)) arrived.push_back(place.rank);
  }
  return arrived;
}

std::vector<int> WaitingIn(const v1::GetJobResponse& job,
                           const v1::RegisteredGroup& group) {
  if (group.missing_size() != group.ranks_size() - group.registered()) {
    return {};
  }
  std::vector<int> waiting;
  for (const RankProgress& place : FindRankProgress(job, group.name())) {
    if (place.group != nullptr && !place.connecting() && !place.stale) continue;
    if (!std::count(group.missing().begin(), group.missing().end(),
                    place.rank)) {
      waiting.push_back(place.rank);
    }
  }
  return waiting;
}

std::string KeyText(const v1::KeyWait& wait) {
  std::string text = absl::StrCat(wait.item() ? "an item of queue" : "key", " ",
                                  base::Quote(wait.key()));
  if (wait.key().empty()) text = "keys";
  if (wait.missing() > 1) {
    absl::StrAppend(&text, " and ", wait.missing() - 1, " more");
  }
  return text;
}

bool IsInternal(const v1::KeyWait& wait) {
  return internal::IsReservedKey(wait.key());
}

Waits::Waits(const v1::GetJobResponse& job) {
  for (const v1::OpenBarrier& barrier : job.barriers()) {
    const Wait wait = {"barrier", absl::StrCat("it waits in barrier ",
                                               base::Quote(barrier.name()))};
    for (const int rank : ArrivedIn(job, barrier)) for_ranks_[rank] = wait;
  }
  for (const v1::RegisteredGroup& group : job.groups()) {
    if (!group.has_forming_for()) continue;
    const Wait wait = {
        "new_group",
        absl::StrCat("it waits in ", internal::GetMaker(group.name()),
                     " for the others of ", base::Quote(group.name()))};
    for (const int rank : WaitingIn(job, group)) for_ranks_[rank] = wait;
  }
  std::map<std::string, int> ranks;
  for (const v1::MemberInfo& member : job.members()) {
    ranks[member.member()] = member.rank();
  }
  for (const v1::KeyWait& wait : job.key_waits()) {
    const auto member = ranks.find(wait.member());
    if (member == ranks.end() || IsInternal(wait)) continue;
    // The longest wait comes first.
    for_key_.insert(
        {member->second,
         {"store", absl::StrCat("it waits for ", KeyText(wait), " for ",
                                SecondsText(Ms(wait.waiting_for())))}});
  }
}

Waits::Wait Waits::ForRanks(int rank) const { return Find(for_ranks_, rank); }

Waits::Wait Waits::ForKey(int rank) const { return Find(for_key_, rank); }

}  // namespace muster::tools
