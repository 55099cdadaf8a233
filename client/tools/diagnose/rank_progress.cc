#include "client/tools/diagnose/rank_progress.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;

milliseconds GetLease(const v1::GetJobResponse& job) {
  // Used if the coordinator does not tell the lease.
  constexpr milliseconds kLease = std::chrono::seconds(10);
  return job.has_lease() ? Ms(job.lease()) : kLease;
}

// Returns the job's ranks by group rank; empty if the group is not registered.
std::vector<int> RegisteredRanks(const v1::GetJobResponse& job,
                                 const std::string& group) {
  for (const v1::RegisteredGroup& registered : job.groups()) {
    if (registered.name() != group) continue;
    return {registered.ranks().begin(), registered.ranks().end()};
  }
  return {};
}

void FillProgress(const v1::MemberProgress& progress, const std::string& group,
                  const std::vector<int>& ranks, milliseconds stale_after,
                  RankProgress& place) {
  place.progress = &progress;
  place.age = Ms(progress.age());
  place.stale = place.age > stale_after;
  for (const v1::GroupProgress& one : progress.groups()) {
    if (one.group() == group) place.group = &one;
  }
  if (place.group == nullptr) return;
  if (!place.group->has_peer_call()) return;
  place.peer_call = place.group->peer_call();
  const int peer = place.peer_call->peer();
  if (peer >= 0 && peer < static_cast<int>(ranks.size())) {
    place.peer_call->set_peer(ranks[static_cast<size_t>(peer)]);
  }
}

}  // namespace

milliseconds Ms(const google::protobuf::Duration& duration) {
  return milliseconds(duration.seconds() * 1000 + duration.nanos() / 1'000'000);
}

std::string SecondsText(milliseconds duration) {
  return absl::StrFormat("%.1fs", static_cast<double>(duration.count()) / 1000);
}

bool IsGone(const v1::MemberInfo& member) {
  return member.state() != v1::MEMBER_STATE_ALIVE &&
         member.state() != v1::MEMBER_STATE_DISCONNECTED;
}

milliseconds SilentAfter(const v1::GetJobResponse& job) {
  return GetLease(job) / 2;
}

milliseconds ToldWithin(const v1::GetJobResponse& job) {
  return GetLease(job) / 8;
}

int64_t RankProgress::enqueued() const {
  return group == nullptr ? 0 : group->last_enqueued();
}

int64_t RankProgress::completed() const {
  return group == nullptr ? 0 : group->last_completed();
}

bool RankProgress::in_call() const {
  return group != nullptr && !group->current().empty();
}

bool RankProgress::in_collective() const {
  return in_call() && !peer_call.has_value() && !connecting();
}

bool RankProgress::connecting() const {
  return in_call() && !peer_call.has_value() && enqueued() == 0;
}

const std::string& RankProgress::call() const { return group->current(); }

milliseconds RankProgress::running_for() const {
  if (!in_call()) return milliseconds(0);
  return Ms(group->running_for()) + (stale ? milliseconds(0) : age);
}

std::vector<RankProgress> FindRankProgress(const v1::GetJobResponse& job,
                                           const std::string& group) {
  const std::vector<int> ranks = RegisteredRanks(job, group);
  const milliseconds stale_after = SilentAfter(job);
  std::vector<RankProgress> places;
  for (int i = 0; i < job.members_size(); ++i) {
    RankProgress place;
    place.member = &job.members(i);
    place.rank = place.member->rank();
    if (i < job.progress_size()) {
      FillProgress(job.progress(i), group, ranks, stale_after, place);
    }
    // An unregistered group has all ranks that report about it; the job's first
    // group has all ranks.
    const bool member =
        ranks.empty()
            ? place.group != nullptr || group == "world"
            : std::binary_search(ranks.begin(), ranks.end(), place.rank);
    if (place.rank >= 0 && member) places.push_back(std::move(place));
  }
  return places;
}

std::set<std::string> GroupNames(const v1::GetJobResponse& job) {
  std::set<std::string> names;
  for (const v1::MemberProgress& progress : job.progress()) {
    for (const v1::GroupProgress& group : progress.groups()) {
      names.insert(group.group());
    }
  }
  return names;
}

}  // namespace muster::tools
