#include "coordinator/core/groups.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/names.h"

namespace muster::coordinator::core {
namespace {

std::string Title(absl::string_view group) {
  return absl::StrCat("group ", base::Quote(group));
}

std::string RanksText(const std::vector<Rank>& ranks) {
  return core::RanksText(ranks, ranks.size());
}

}  // namespace

std::string RanksText(absl::Span<const Rank> first, size_t count) {
  std::vector<int> numbers;
  for (const Rank rank : first.subspan(0, kRanksInTextMax)) {
    numbers.push_back(rank.value());
  }
  return base::CountedRanksText(numbers, count);
}

GroupTable::GroupTable(const Limits* limits, const Membership* membership,
                       Journal* journal)
    : limits_(*limits),
      membership_(*membership),
      journal_(*journal),
      calls_(limits, membership) {}

void GroupTable::Reset(FormationReply formation) {
  Clear();
  formation_ = std::move(formation);
  calls_.Reset(formation_, /*is_new=*/true);
}

void GroupTable::Clear() {
  for (const auto& [name, group] : groups_) NoteEnd(name, group);
  groups_.clear();
  ranks_ = 0;
  calls_.Reset(formation_, /*is_new=*/true);
}

void GroupTable::NoteEnd(const std::string& name, const Group& group) {
  journal_.Group(name);
  for (size_t i = 0; i < group.ranks->size(); ++i) {
    if (group.registered[i]) journal_.GroupRank(name, (*group.ranks)[i]);
  }
}

StatusOr<Rank> GroupTable::FindRank(const Call& call,
                                    Generation generation) const {
  if (formation_ == nullptr) {
    return AbortedError("groups: no generation has formed; rendezvous first");
  }
  const Generation current = formation_->generation;
  if (generation < Generation() || generation > current) {
    return InvalidArgumentError(
        absl::StrCat("groups: generation ", generation.value(),
                     " has not begun, current is ", current.value(),
                     "; take the number that the rendezvous returned"));
  }
  if (generation != Generation() && generation != current) {
    return AbortedError(absl::StrCat("groups: generation ", generation.value(),
                                     " is over, current is ", current.value(),
                                     "; rendezvous again"));
  }
  const Member* const member = membership_.Find(call.member);
  if (member == nullptr || !member->rank.has_value() ||
      member->generation != current) {
    return AbortedError(absl::StrCat("groups: member ",
                                     base::Quote(call.member.value()),
                                     " holds no rank in ", "generation ",
                                     current.value(), "; rendezvous again"));
  }
  return *member->rank;
}

// `member "b" (host-b, pid 7)`.
std::string GroupTable::MemberText(Rank rank) const {
  const Seat& seat = formation_->world[rank.value()];
  return absl::StrCat("member ", base::Quote(seat.member.value()), " (",
                      seat.host, ", pid ", seat.pid, ")");
}

Status GroupTable::CheckGroup(Rank rank, const GroupDefinition& group) const {
  const std::string title = Title(group.name);
  if (group.ranks.empty()) {
    return InvalidArgumentError(absl::StrCat(title, " has no ranks"));
  }
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  for (size_t i = 0; i < group.ranks.size(); ++i) {
    const int32_t value = group.ranks[i].value();
    if (value < 0 || value >= size) {
      return InvalidArgumentError(
          absl::StrCat(title, ": rank ", value, " is outside of world size ",
                       size, " (ranks 0 to ", size - 1, ")"));
    }
    if (i > 0 && value <= group.ranks[i - 1].value()) {
      return InvalidArgumentError(
          absl::StrCat(title, ": rank ", value, " follows rank ",
                       group.ranks[i - 1].value(), "; ranks must ascend"));
    }
  }
  if (!std::binary_search(group.ranks.begin(), group.ranks.end(), rank)) {
    return InvalidArgumentError(absl::StrCat(
        title, ": rank ", rank.value(), ", which registers it, is not among ",
        "its ", RanksText(group.ranks)));
  }
  const auto known = groups_.find(group.name);
  if (known == groups_.end() || *known->second.ranks == group.ranks) {
    return OkStatus();
  }
  return InvalidArgumentError(absl::StrCat(
      title, ": ", MemberText(rank), " registers ", RanksText(group.ranks),
      ", ", MemberText(known->second.founder), " registered ",
      RanksText(*known->second.ranks)));
}

Status GroupTable::CheckGroups(
    Rank rank, const std::vector<GroupDefinition>& groups) const {
  absl::btree_set<absl::string_view> names;
  int64_t added = 0;
  int64_t added_ranks = 0;
  for (const GroupDefinition& group : groups) {
    const Offer offer{"group", group.name};
    if (group.name.empty()) {
      return InvalidArgumentError(absl::StrCat("groups: number ",
                                               names.size() + 1, " of ",
                                               groups.size(), " has no name"));
    }
    Status status = CheckName(limits_, "groups", offer);
    if (status.ok() && !names.insert(group.name).second) {
      status = InvalidArgumentError(
          absl::StrCat(Title(group.name), " is listed twice"));
    }
    if (status.ok()) status = CheckGroup(rank, group);
    if (status.ok() && !groups_.contains(group.name)) {
      ++added;
      added_ranks += static_cast<int64_t>(group.ranks.size());
      status = CheckLimit("groups", limits_.groups, size() + added, offer);
    }
    if (status.ok()) {
      status = CheckLimit("group_ranks", limits_.group_ranks,
                          ranks_ + added_ranks, offer);
    }
    if (!status.ok()) return status;
  }
  return OkStatus();
}

bool GroupTable::MarkRegistered(Group& group, Rank rank) {
  const auto place =
      std::lower_bound(group.ranks->begin(), group.ranks->end(), rank);
  if (place == group.ranks->end() || *place != rank) return false;
  const size_t index = static_cast<size_t>(place - group.ranks->begin());
  if (group.registered[index]) return false;
  group.registered[index] = true;
  ++group.registered_count;
  if (group.registered_count == static_cast<int32_t>(group.ranks->size())) {
    group.forming_since.reset();
  }
  return true;
}

bool GroupTable::IsUsed(const Group& group) const {
  for (size_t i = 0; i < group.ranks->size(); ++i) {
    if (!group.registered[i]) continue;
    const Seat& seat = formation_->world[(*group.ranks)[i].value()];
    const Member* const member = membership_.Find(seat.member);
    if (member != nullptr && member->live() &&
        member->incarnation == seat.incarnation) {
      return true;
    }
  }
  return false;
}

void GroupTable::LeaveGroup(const std::string& name, Rank rank) {
  const auto found = groups_.find(name);
  if (found == groups_.end()) return;
  Group& group = found->second;
  const auto place =
      std::lower_bound(group.ranks->begin(), group.ranks->end(), rank);
  if (place == group.ranks->end() || *place != rank) return;
  const size_t index = static_cast<size_t>(place - group.ranks->begin());
  if (!group.registered[index]) return;
  group.registered[index] = false;
  --group.registered_count;
  journal_.GroupRank(name, rank);
  if (IsUsed(group)) return;
  ranks_ -= static_cast<int64_t>(group.ranks->size());
  NoteEnd(name, group);
  groups_.erase(found);
}

Status GroupTable::CheckCallAndGroups(Rank rank, GroupsRequest& request,
                                      Instant now, Outbox& out) {
  if (!request.call.has_value()) return CheckGroups(rank, request.groups);
  GroupCall& call = *request.call;
  if (call.ranks.empty() && !request.groups.empty()) {
    call.ranks = request.groups[0].ranks;
  }
  GroupCall failed = {.series = call.series,
                      .number = call.number,
                      .instance = call.instance,
                      .callers = call.callers};
  Status status = calls_.Note(rank, std::move(call), now, out);
  if (!status.ok()) return status;
  status = CheckGroups(rank, request.groups);
  if (status.ok()) return status;
  return calls_.NoteFailure(rank, std::move(failed), status, now, out);
}

void GroupTable::Register(const Call& call, GroupsRequest request, Instant now,
                          Outbox& out) {
  const StatusOr<Rank> rank = FindRank(call, request.generation);
  if (!rank.ok()) return out.Fail(call.waiter, rank.status());
  for (const std::string& name : request.left) LeaveGroup(name, *rank);
  Status status = CheckCallAndGroups(*rank, request, now, out);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  GroupsReply reply;
  reply.registered.reserve(request.groups.size());
  for (GroupDefinition& definition : request.groups) {
    Group& group = groups_[definition.name];
    if (group.ranks == nullptr) {
      group.ranks = std::make_shared<const std::vector<Rank>>(
          std::move(definition.ranks));
      group.description = CutText(definition.description, limits_.name_bytes);
      group.founder = *rank;
      group.registered.resize(group.ranks->size());
      group.forming_since = now;
      ranks_ += static_cast<int64_t>(group.ranks->size());
      journal_.Group(definition.name);
    }
    if (MarkRegistered(group, *rank)) {
      journal_.GroupRank(definition.name, *rank);
    }
    reply.registered.push_back(group.registered_count);
  }
  out.Answer(call.waiter, std::move(reply));
}

const std::vector<Rank>* GroupTable::FindRanks(absl::string_view group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? nullptr : found->second.ranks.get();
}

GroupRecord GroupTable::MakeRecord(const std::string& group) const {
  GroupRecord record;
  record.name = group;
  const auto found = groups_.find(group);
  record.erased = found == groups_.end();
  if (record.erased) return record;
  record.ranks = *found->second.ranks;
  record.description = found->second.description;
  record.founder = found->second.founder;
  return record;
}

GroupRankRecord GroupTable::MakeRecord(const std::string& group,
                                       Rank rank) const {
  GroupRankRecord record;
  record.group = group;
  record.rank = rank;
  record.erased = true;
  const auto found = groups_.find(group);
  if (found == groups_.end()) return record;
  const std::vector<Rank>& ranks = *found->second.ranks;
  const auto place = std::lower_bound(ranks.begin(), ranks.end(), rank);
  record.erased =
      place == ranks.end() || *place != rank ||
      !found->second.registered[static_cast<size_t>(place - ranks.begin())];
  return record;
}

void GroupTable::RestoreFormation(FormationReply formation) {
  formation_ = std::move(formation);
  calls_.Reset(formation_, /*is_new=*/false);
}

void GroupTable::Restore(GroupRecord record, Instant now) {
  Group& group = groups_[record.name];
  group.ranks =
      std::make_shared<const std::vector<Rank>>(std::move(record.ranks));
  group.description = std::move(record.description);
  group.founder = record.founder;
  group.registered.resize(group.ranks->size());
  group.forming_since = now;
  ranks_ += static_cast<int64_t>(group.ranks->size());
}

void GroupTable::Restore(const GroupRankRecord& record) {
  const auto found = groups_.find(record.group);
  if (found != groups_.end()) MarkRegistered(found->second, record.rank);
}

std::vector<GroupSnapshot> GroupTable::Snapshot(Instant now) const {
  std::vector<GroupSnapshot> snapshots;
  snapshots.reserve(groups_.size());
  for (const auto& [name, group] : groups_) {
    GroupSnapshot snapshot;
    snapshot.name = name;
    snapshot.description = group.description;
    snapshot.ranks = group.ranks;
    snapshot.registered = group.registered_count;
    if (group.forming_since.has_value()) {
      snapshot.forming_for = now - *group.forming_since;
    }
    for (size_t i = 0; i < group.ranks->size() &&
                       snapshot.missing.size() < kMissingInSnapshotMax;
         ++i) {
      if (!group.registered[i]) snapshot.missing.push_back((*group.ranks)[i]);
    }
    snapshots.push_back(std::move(snapshot));
  }
  return snapshots;
}

Status GroupTable::CheckInvariants() const {
  int64_t ranks = 0;
  for (const auto& [name, group] : groups_) {
    const auto registered =
        std::count(group.registered.begin(), group.registered.end(), true);
    ranks += static_cast<int64_t>(group.ranks->size());
    if (group.registered.size() != group.ranks->size() || registered == 0 ||
        registered != group.registered_count || formation_ == nullptr ||
        group.ranks->back().value() >=
            static_cast<int32_t>(formation_->world.size())) {
      return InternalError(
          absl::StrCat(Title(name), ": counts ", group.registered_count, " of ",
                       group.ranks->size(), " ranks, has ", registered));
    }
  }
  if (ranks != ranks_) {
    return InternalError(
        absl::StrCat("groups: count ", ranks_, " ranks, have ", ranks));
  }
  return calls_.CheckInvariants();
}

}  // namespace muster::coordinator::core
