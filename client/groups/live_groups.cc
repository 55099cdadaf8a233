#include "client/groups/live_groups.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::internal {
namespace {

// Returns those that still exist.
template <typename T>
std::vector<std::shared_ptr<T>> Locked(
    const std::vector<std::weak_ptr<T>>& references) {
  std::vector<std::shared_ptr<T>> objects;
  objects.reserve(references.size());
  for (const std::weak_ptr<T>& reference : references) {
    if (auto object = reference.lock()) objects.push_back(std::move(object));
  }
  return objects;
}

template <typename T>
void AddAndTidy(std::vector<std::weak_ptr<T>>& references,
                const std::shared_ptr<T>& object) {
  references.erase(
      std::remove_if(references.begin(), references.end(),
                     [](const std::weak_ptr<T>& it) { return it.expired(); }),
      references.end());
  references.push_back(object);
}

// If the event is or lists the departure of `rank`, returns the member.
std::optional<MemberInfo> FindDeparture(const MemberEvent& event, int rank) {
  if (event.kind == MemberEvent::Kind::kWaiting ||
      event.kind == MemberEvent::Kind::kGroupFailed) {
    return std::nullopt;
  }
  if (event.member.rank == rank) return event.member;
  if (event.kind != MemberEvent::Kind::kLeft) return std::nullopt;
  for (const MemberInfo& member : event.left_members) {
    if (member.rank == rank) return member;
  }
  for (const RankRange& range : event.left_ranks) {
    if (rank >= range.first && rank < range.first + range.count) {
      return MemberInfo{.rank = rank, .cause = event.member.cause};
    }
  }
  return std::nullopt;
}

// Whether `event` tells what `known` told.
bool IsSameVerdict(const MemberEvent& known, const MemberEvent& event) {
  return event.kind == MemberEvent::Kind::kGroupFailed &&
         known.kind == event.kind && known.generation == event.generation &&
         known.group == event.group &&
         known.group_instance == event.group_instance &&
         known.code == event.code;
}

}  // namespace

std::shared_ptr<ErrorResolver> LiveGroups::NewResolver(
    ErrorResolver::Options options) {
  auto resolver = std::make_shared<ErrorResolver>(std::move(options));
  // Under the lock, so that no resolver misses an event or gets one twice.
  MutexLock lock(mutex_);
  for (const MemberEvent& event : events_) resolver->OnEvent(event);
  if (!session_over_.ok()) resolver->OnSessionOver(session_over_);
  AddAndTidy(resolvers_, resolver);
  return resolver;
}

void LiveGroups::Add(const std::shared_ptr<GroupState>& group) {
  MutexLock lock(mutex_);
  AddAndTidy(groups_, group);
}

LiveGroups::Connecting::Connecting(LiveGroups* live, std::string group,
                                   std::string call)
    : live_(*live), group_(std::move(group)), call_(std::move(call)) {
  MutexLock lock(live_.mutex_);
  live_.connecting_.push_back(this);
}

LiveGroups::Connecting::~Connecting() {
  MutexLock lock(live_.mutex_);
  std::vector<const Connecting*>& all = live_.connecting_;
  all.erase(std::remove(all.begin(), all.end(), this), all.end());
}

GroupProgress LiveGroups::Connecting::Progress() const {
  return {.group = group_,
          .current = call_,
          .running_for = std::chrono::duration_cast<std::chrono::milliseconds>(
              Clock::now() - since_)};
}

void LiveGroups::OnEvent(const MemberEvent& event) {
  std::vector<std::shared_ptr<ErrorResolver>> resolvers;
  {
    MutexLock lock(mutex_);
    // Verdicts are told again after a lost connection.
    if (std::ranges::any_of(events_, [&](const MemberEvent& known) {
          return IsSameVerdict(known, event);
        })) {
      return;
    }
    events_.push_back(event);
    resolvers = Locked(resolvers_);
  }
  std::vector<ErrorResolver::Completion> endings;
  for (const auto& resolver : resolvers)
    endings.push_back(resolver->OnEvent(event));
}

void LiveGroups::OnSessionOver(const Status& why) {
  std::vector<std::shared_ptr<ErrorResolver>> resolvers;
  {
    MutexLock lock(mutex_);
    session_over_ = why;
    resolvers = Locked(resolvers_);
  }
  std::vector<ErrorResolver::Completion> endings;
  for (const auto& resolver : resolvers)
    endings.push_back(resolver->OnSessionOver(why));
}

bool LiveGroups::IsOver(int64_t generation) const {
  MutexLock lock(mutex_);
  return std::any_of(
      events_.begin(), events_.end(), [&](const MemberEvent& event) {
        return event.generation == generation && event.generation_ended;
      });
}

LiveGroups::Absent LiveGroups::FindAbsent(int64_t generation,
                                          const std::vector<int>& ranks) const {
  Absent absent;
  MutexLock lock(mutex_);
  for (const int rank : ranks) {
    for (const MemberEvent& event : events_) {
      if (event.generation != generation) continue;
      std::optional<MemberInfo> member = FindDeparture(event, rank);
      if (!member.has_value()) continue;
      if (event.kind == MemberEvent::Kind::kFailed) {
        absent.reported.push_back(rank);
      } else {
        absent.gone.push_back(*std::move(member));
        if (event.kind == MemberEvent::Kind::kLeft) absent.left.push_back(rank);
      }
      break;
    }
  }
  return absent;
}

std::vector<GroupProgress> LiveGroups::Progress() const {
  std::vector<std::shared_ptr<GroupState>> groups;
  std::vector<GroupProgress> progress;
  {
    MutexLock lock(mutex_);
    groups = Locked(groups_);
    for (const Connecting* const connecting : connecting_) {
      progress.push_back(connecting->Progress());
    }
  }
  for (const auto& group : groups) {
    if (progress.size() >= kProgressGroupsMax) break;
    for (GroupProgress& one : group->Progress()) {
      progress.push_back(std::move(one));
    }
  }
  return progress;
}

}  // namespace muster::internal
