// The process groups of a generation, as registered by its members.

#ifndef MUSTER_COORDINATOR_CORE_GROUPS_H_
#define MUSTER_COORDINATOR_CORE_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/core/call.h"
#include "coordinator/core/group_calls.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/snapshot.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

struct GroupDefinition {
  std::string name{};
  std::vector<Rank> ranks{};  // world ranks, ascending
  std::string description{};  // for people
};

struct GroupsRequest {
  Generation generation{};  // of the ranks; 0: the newest
  // Groups that the caller leaves first.
  std::vector<std::string> left{};
  std::vector<GroupDefinition> groups{};
  // The caller's call; without ranks it has those of the first of `groups`.
  std::optional<GroupCall> call{};
};

// The part of a group that survives a restart (records.h): its definition and,
// separately, which ranks have registered, so that a large group is not
// rewritten for each of its ranks.
struct GroupRecord {
  std::string name;  // name
  bool erased = false;
  std::vector<Rank> ranks;
  std::string description;
  Rank founder;
};
struct GroupRankRecord {
  std::string group;  // name
  Rank rank;          // name
  bool erased = false;
};

// `3 ranks (0, 1, 2)`, `90 ranks (0, 1, 2, 3, 4, 5, 6, 7 and 82 more)`. `first`
// has all `count` ranks or at least the first kRanksInTextMax.
std::string RanksText(absl::Span<const Rank> first, size_t count);

// GroupTable holds the groups of the newest generation. The first member to
// register a group defines it; the others must name the same ranks. The last
// member to leave the group removes it.
class GroupTable {
 public:
  // Both must outlive the table.
  GroupTable(const Limits* limits, const Membership* membership,
             Journal* journal);
  GroupTable(const GroupTable&) = delete;
  GroupTable& operator=(const GroupTable&) = delete;

  // Forgets all groups. Later registrations are for `formation`.
  void Reset(FormationReply formation);

  // Forgets all groups; for a job that all members have left.
  void Clear();

  // GroupsReply. The caller must be a live member. It first leaves the groups
  // named `left`, and stays out of them if the rest fails. Then its call is
  // compared with those of others. Then it is registered in all of `groups` or,
  // if anything fails, in none. A group is forgotten when all members that have
  // registered it have left it or departed.
  // Errors: ABORTED (no generation or another one, or the caller has no rank in
  //   it), INVALID_ARGUMENT (a group's name or ranks, or other ranks than it
  //   has: names both members and both lists; see GroupCallTable),
  //   RESOURCE_EXHAUSTED.
  void Register(const Call& call, GroupsRequest request, Instant now,
                Outbox& out);

  // Returns the caller's rank in `generation`. Errors: ABORTED (no generation
  // or another one, or the caller has no rank in it), INVALID_ARGUMENT (a later
  // generation).
  StatusOr<Rank> FindRank(const Call& call, Generation generation) const;

  // The ranks of a group, ascending; null if the group is not registered.
  const std::vector<Rank>* FindRanks(absl::string_view group) const;

  GroupRecord MakeRecord(const std::string& group) const;
  GroupRankRecord MakeRecord(const std::string& group, Rank rank) const;

  // Restore a new table, in this order.
  void RestoreFormation(FormationReply formation);
  void Restore(GroupRecord record, Instant now);
  void Restore(const GroupRankRecord& record);

  std::vector<GroupSnapshot> Snapshot(Instant now) const;
  int64_t size() const { return static_cast<int64_t>(groups_.size()); }

  Status CheckInvariants() const;

 private:
  struct Group {
    std::shared_ptr<const std::vector<Rank>> ranks;
    std::string description;
    Rank founder;
    std::vector<bool> registered;  // by index in `ranks`
    int32_t registered_count = 0;
    // The time of the first registration or restoration; none once all its
    // ranks were registered at the same time.
    std::optional<Instant> forming_since;
  };

  Status CheckCallAndGroups(Rank rank, GroupsRequest& request, Instant now,
                            Outbox& out);
  Status CheckGroups(Rank rank,
                     const std::vector<GroupDefinition>& groups) const;
  Status CheckGroup(Rank rank, const GroupDefinition& group) const;
  std::string MemberText(Rank rank) const;
  static bool MarkRegistered(Group& group, Rank rank);
  void LeaveGroup(const std::string& name, Rank rank);
  // Whether a live member is registered in the group.
  bool IsUsed(const Group& group) const;
  // Records in the journal that the group leaves the table.
  void NoteEnd(const std::string& name, const Group& group);

  const Limits& limits_;
  const Membership& membership_;
  Journal& journal_;

  FormationReply formation_;
  GroupCallTable calls_;
  absl::btree_map<std::string, Group> groups_;
  int64_t ranks_ = 0;  // in all groups together
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_GROUPS_H_
