// Monitored barriers: they record which ranks have arrived and which are
// missing, and give every caller the same answer.

#ifndef MUSTER_COORDINATOR_CORE_BARRIERS_H_
#define MUSTER_COORDINATOR_CORE_BARRIERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/call.h"
#include "coordinator/core/groups.h"
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

struct BarrierRequest {
  Generation generation{};  // of the ranks; 0: the newest one
  std::string group{};
  std::string barrier{};
  // The participants. Empty: the ranks of `group`, or all ranks if `group` is
  // not registered.
  std::vector<Rank> ranks{};
  Rank rank{};         // the caller's
  Duration timeout{};  // the first caller's counts
  // false: fail as soon as a participant is known to be gone.
  // true: always wait for the whole timeout and name all missing ranks.
  bool wait_all_ranks = false;
};

// The part of a barrier that survives a restart (records.h): its participants,
// and each rank's last decision. Ranks that wait for a decision call again
// after a restart. Rewritten with each decision.
struct SeriesRecord {
  std::string group;    // name
  std::string barrier;  // name
  bool erased = false;
  std::vector<Rank> participants;
  Rank founder;
  int64_t newest = 0;
  bool dropped_results = false;
  std::vector<std::pair<Rank, int64_t>> taken;  // last instance of each rank
};

// One kept decision of a barrier.
struct DecisionRecord {
  std::string group;     // name
  std::string barrier;   // name
  int64_t instance = 0;  // name
  bool erased = false;
  Status status;
  BarrierReply result;
};

// The last instance whose decision a rank has received, if that is newer than
// the SeriesRecord.
struct TakenRecord {
  std::string group;    // name
  std::string barrier;  // name
  Rank rank;            // name
  bool erased = false;
  int64_t instance = 0;
};

// BarrierTable numbers the instances of each (group, barrier) from 1: a rank's
// nth call arrives at instance n. An instance is decided exactly once; all its
// callers, late ones included, get the same answer. All numbers are per
// generation.
class BarrierTable {
 public:
  // The arguments must outlive the table.
  BarrierTable(const Limits* limits, WaiterQuota* quota,
               const Membership* membership, const GroupTable* groups,
               Journal* journal);
  ~BarrierTable();
  BarrierTable(const BarrierTable&) = delete;
  BarrierTable& operator=(const BarrierTable&) = delete;

  // Aborts the open instances and starts over with the ranks of `formation`.
  void Reset(FormationReply formation, Instant now, Outbox& out);

  // Answers with a BarrierReply when the instance is decided; BarrierOutcome
  // has its statuses. The caller must be a live member.
  // Errors: ABORTED (no generation or another one), INVALID_ARGUMENT (rank or
  //   participants; other participants than the group's), OUT_OF_RANGE (the
  //   decision is no longer kept), RESOURCE_EXHAUSTED.
  void Arrive(const Call& call, const BarrierRequest& request, Instant now,
              Outbox& out);

  // Withdraws the member's arrivals, fails its calls with `status`, and fails
  // the instances of which it is a participant, unless they wait for all ranks.
  void MemberDeparted(const Event& event, const Status& status, Instant now,
                      Outbox& out);

  // Withdraws the arrival of `waiter` and fails the call with `status`. Returns
  // false if `waiter` does not wait here.
  bool Cancel(WaiterId waiter, const Status& status, Outbox& out);

  // Lets `newer` wait in place of `older`. Returns false if `older` does not
  // wait here.
  bool Retarget(WaiterId older, WaiterId newer);

  // Decides every instance whose deadline is at or before `now`.
  void Expire(Instant now, Outbox& out);

  std::optional<Instant> NextDeadline() const;

  // Forgets everything. Called when all members have left the job.
  void Clear(Instant now, Outbox& out);

  SeriesRecord MakeRecord(const std::string& group,
                          const std::string& barrier) const;
  DecisionRecord MakeRecord(const std::string& group,
                            const std::string& barrier, int64_t instance) const;
  TakenRecord MakeRecord(const std::string& group, const std::string& barrier,
                         Rank rank) const;

  // Restore a new table, after its members and in this order.
  void RestoreFormation(FormationReply formation);
  void Restore(SeriesRecord record);
  void Restore(DecisionRecord record);
  void Restore(const TakenRecord& record);

  // The open instances with the earliest deadlines.
  std::vector<BarrierSnapshot> Snapshot(Instant now) const;
  int64_t open() const { return static_cast<int64_t>(deadlines_.size()); }
  // The memory of the kept decisions.
  int64_t decision_bytes() const { return decision_bytes_; }
  int64_t series() const { return static_cast<int64_t>(series_.size()); }
  int64_t waiters() const {
    return static_cast<int64_t>(waiting_ranks_.size());
  }

  Status CheckInvariants() const;

 private:
  struct Instance {
    int64_t number = 0;
    bool wait_all_ranks = false;
    Duration timeout{};
    Instant first_at;
    Instant deadline;
    Rank first;
    absl::btree_map<Rank, WaiterId> arrived;
    // Set by the decision.
    BarrierReply result;
    Status status;
    int64_t bytes = 0;        // of `result` and `status`
    uint64_t decided_as = 0;  // number among the table's decisions
    int32_t past = 0;         // where AllPast resumes
    bool unwritten = false;   // not journaled before the decision

    bool decided() const { return result != nullptr; }
  };

  using Key = std::pair<std::string, std::string>;  // (group, barrier)

  struct Series {
    Key key;
    std::vector<Rank> participants;        // ascending; empty: all ranks
    Rank founder;                          // named the participants
    absl::btree_map<Rank, int64_t> taken;  // last instance of each rank
    // Open instances, and decided ones that a participant may still ask for.
    absl::btree_map<int64_t, Instance> instances;
    int64_t newest = 0;
    bool dropped_results = false;  // a rank may ask for a dropped decision
    int32_t past_newest = 0;       // where AllPast resumes for `newest`
    int32_t gone = 0;              // participants in gone_
    absl::btree_set<Rank> apart;   // ranks that have a TakenRecord
    uint64_t used_at = 0;          // calls_ at the last use
    uint64_t idle_as = 0;          // key in idle_; 0: none
  };

  struct WaitingRank {
    Series* series;
    int64_t instance;
    Rank rank;
  };

  // The reason why a rank cannot arrive any more in this generation.
  struct Departure {
    MissingCause cause;
    std::string text;
  };

  Status CheckCaller(const Call& call, const BarrierRequest& request) const;
  StatusOr<std::vector<Rank>> Participants(const BarrierRequest& request) const;
  StatusOr<Series*> FindSeries(const BarrierRequest& request,
                               const std::vector<Rank>& participants);
  bool MakeRoom();
  void Relist(Series& series);
  void ArriveAt(Series& series, const std::vector<Rank>& participants,
                const Call& call, const BarrierRequest& request, Instant now,
                Outbox& out);
  bool RefuseOtherParticipants(Series& series, const Call& call,
                               const BarrierRequest& request,
                               const std::vector<Rank>& participants,
                               Instant now, Outbox& out);
  bool ReplyIfOver(Series& series, int64_t number, const Call& call,
                   const BarrierRequest& request, Outbox& out);
  StatusOr<Instance*> OpenInstance(Series& series, int64_t number,
                                   const BarrierRequest& request, Instant now);
  void TryDecide(Series& series, Instance& instance, Instant now, Outbox& out);
  void Decide(Series& series, Instance& instance, BarrierOutcome outcome,
              absl::string_view conflict, Instant now, Outbox& out);
  using Instances = absl::btree_map<int64_t, Instance>;

  void Keep(Series& series, Instance& instance);
  Instances::iterator Drop(Series& series, Instances::iterator decided);
  void RetireInstances(Series& series);
  void ForgetDropped(Series& series);
  void JournalSeries(Series& series);
  void JournalDecision(const Series& series, Instance& instance);
  void JournalForgotten(const Series& series, const Instance& instance);
  void Take(Series& series, Rank rank, int64_t number);

  int32_t Expected(const Series& series) const;
  Rank ParticipantAt(const Series& series, int32_t place) const;
  bool TakesPart(const Series& series, Rank rank) const;
  int32_t CountGone(const Series& series) const;
  bool AllPast(const Series& series, int64_t number, int32_t& from) const;
  // Describes up to `count_max` missing ranks. Adds all others to `others`, if
  // it is not null.
  std::vector<MissingRank> Missing(const Series& series,
                                   const Instance& instance, Instant now,
                                   size_t count_max, RankRanges* others) const;
  MissingRank DescribeMissing(const Series& series, Rank rank,
                              Instant now) const;
  std::string ParticipantsText(const std::vector<Rank>& participants) const;
  std::string RankText(Rank rank) const;

  const Limits& limits_;
  WaiterQuota& quota_;
  const Membership& membership_;
  const GroupTable& groups_;
  Journal& journal_;

  FormationReply formation_;
  absl::btree_map<Rank, Departure> gone_;
  absl::btree_map<Key, std::unique_ptr<Series>> series_;
  absl::flat_hash_map<WaiterId, WaitingRank> waiting_ranks_;
  // The deadlines of the open instances.
  absl::btree_set<std::pair<Instant, std::pair<Key, int64_t>>> deadlines_;
  uint64_t calls_ = 0;
  // Series whose numbering may be forgotten, by used_at (lowest first).
  absl::btree_map<uint64_t, Series*> idle_;
  // The kept decisions by decided_as, and their memory.
  absl::btree_map<uint64_t, std::pair<Series*, int64_t>> decisions_;
  int64_t decision_bytes_ = 0;
  uint64_t decided_ = 0;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_BARRIERS_H_
