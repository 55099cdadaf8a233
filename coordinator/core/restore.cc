// How a coordinator's state goes into records and comes back from them.

#include <utility>
#include <variant>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator.h"

namespace muster::coordinator::core {
namespace {

// Members before what refers to them, the generation before its barriers.
template <typename T>
void TakeOut(std::vector<Record>& records, std::vector<T>& out) {
  for (Record& record : records) {
    if (T* const found = std::get_if<T>(&record)) {
      out.push_back(std::move(*found));
    }
  }
}

// A join's answer is recorded by its generation's number.
void ResolveFormation(const FormationReply& newest, ReplyRecord& record) {
  auto* const answer = std::get_if<FormationReply>(&record.payload);
  if (answer == nullptr || *answer == nullptr) return;
  if (newest != nullptr && newest->generation == (*answer)->generation) {
    *answer = newest;
    return;
  }
  record.status = absl::AbortedError(
      absl::StrCat("rendezvous: generation ", (*answer)->generation.value(),
                   " is over; rendezvous again"));
  record.payload = std::monostate();
}

// The leave of a member that only its seat is known of.
Event LeftEarlier(Generation generation, Rank rank, const Seat& seat) {
  Event event;
  event.kind = EventKind::kLeft;
  event.member = seat.member;
  event.incarnation = seat.incarnation;
  event.rank = rank;
  event.host = seat.host;
  event.pid = seat.pid;
  event.cause = "left before the coordinator was restarted";
  event.generation = generation;
  return event;
}

}  // namespace

std::vector<Record> Coordinator::TakeChanges() {
  std::vector<Record> changes;
  for (const MemberId& id : journal_.members) {
    changes.push_back(membership_.RecordOf(id));
  }
  for (const auto& [id, sequence] : journal_.replies) {
    ReplyRecord record;
    record.member = id;
    record.sequence = sequence;
    record.erased = true;
    const Member* member = membership_.Find(id);
    if (member != nullptr) member->replies.Record(record);
    changes.push_back(std::move(record));
  }
  if (journal_.generation) {
    changes.push_back(GenerationRecord{rendezvous_.formation(),
                                       rendezvous_.running(), generation_end_,
                                       rendezvous_.closed()});
  }
  for (const std::string& group : journal_.groups) {
    changes.push_back(groups_.RecordOf(group));
  }
  for (const auto& [group, rank] : journal_.group_ranks) {
    changes.push_back(groups_.RecordOf(group, rank));
  }
  for (const auto& [group, barrier] : journal_.series) {
    changes.push_back(barriers_.RecordOf(group, barrier));
  }
  for (const auto& [group, barrier, instance] : journal_.decisions) {
    changes.push_back(barriers_.RecordOf(group, barrier, instance));
  }
  for (const auto& [group, barrier, rank] : journal_.taken) {
    changes.push_back(barriers_.RecordOf(group, barrier, rank));
  }
  for (const std::string& key : journal_.keys) {
    changes.push_back(store_.RecordOf(key));
  }
  for (const auto& [key, number] : journal_.items) {
    changes.push_back(store_.RecordOf(key, number));
  }
  if (!journal_.keys.empty() || !journal_.items.empty()) {
    changes.push_back(StoreRecord{store_.revision()});
  }
  journal_.Clear();
  return changes;
}

// Who has left the newest generation, from its seats: a member may have come
// back with a new incarnation, or be forgotten.
void Coordinator::RestoreFarewells(Instant now) {
  const FormationReply formation = rendezvous_.formation();
  if (formation == nullptr) return;
  for (size_t i = 0; i < formation->world.size(); ++i) {
    const Seat& seat = formation->world[i];
    const Member* const member = membership_.Find(seat.member);
    if (member != nullptr && member->incarnation == seat.incarnation) {
      if (member->state == MemberState::kLeft && member->rank.has_value()) {
        farewells_.Restore(membership_.LeftEvent(*member, now));
      }
    } else if (rendezvous_.running()) {
      // In peace: anything else would have ended the generation.
      farewells_.Restore(LeftEarlier(formation->generation,
                                     Rank(static_cast<int32_t>(i)), seat));
    }
  }
}

void Coordinator::Restore(std::vector<Record> records, Instant now) {
  std::vector<MemberRecord> members;
  TakeOut(records, members);
  for (MemberRecord& record : members) {
    membership_.Restore(std::move(record), now);
  }

  std::vector<GenerationRecord> generations;
  TakeOut(records, generations);
  for (GenerationRecord& record : generations) {
    barriers_.RestoreFormation(record.formation);
    groups_.RestoreFormation(record.formation);
    rendezvous_.Restore(std::move(record.formation), record.running,
                        std::move(record.closed));
    generation_end_ = std::move(record.end);
  }
  RestoreFarewells(now);

  std::vector<GroupRecord> groups;
  TakeOut(records, groups);
  for (GroupRecord& record : groups) groups_.Restore(std::move(record), now);
  std::vector<GroupRankRecord> group_ranks;
  TakeOut(records, group_ranks);
  for (const GroupRankRecord& record : group_ranks) groups_.Restore(record);

  std::vector<SeriesRecord> series;
  TakeOut(records, series);
  for (SeriesRecord& record : series) barriers_.Restore(std::move(record));
  std::vector<DecisionRecord> decisions;
  TakeOut(records, decisions);
  for (DecisionRecord& record : decisions) barriers_.Restore(std::move(record));
  std::vector<TakenRecord> taken;
  TakeOut(records, taken);
  for (const TakenRecord& record : taken) barriers_.Restore(record);

  std::vector<ReplyRecord> replies;
  TakeOut(records, replies);
  absl::btree_map<MemberId, std::vector<ReplyRecord>> replies_of;
  for (ReplyRecord& record : replies) {
    ResolveFormation(rendezvous_.formation(), record);
    replies_of[record.member].push_back(std::move(record));
  }
  for (auto& [id, kept] : replies_of) {
    Member* const member = membership_.Find(id);
    if (member != nullptr) member->replies.Restore(std::move(kept));
  }

  std::vector<EntryRecord> entries;
  TakeOut(records, entries);
  for (EntryRecord& record : entries) store_.Restore(std::move(record), now);
  std::vector<ItemRecord> items;
  TakeOut(records, items);
  for (ItemRecord& record : items) store_.Restore(std::move(record));
  std::vector<StoreRecord> store;
  TakeOut(records, store);
  for (const StoreRecord& record : store) {
    store_.RestoreRevision(record.revision);
  }
}

}  // namespace muster::coordinator::core
