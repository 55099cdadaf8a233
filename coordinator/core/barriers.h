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
#include "base/status.h"
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

namespace muster::coordinator::core {

struct BarrierRequest {
  Generation generation{};  // in which the ranks hold; 0: the newest one
  std::string group{};
  std::string barrier{};
  // The participants; empty: the ranks of `group`, all where nobody has
  // registered it.
  std::vector<Rank> ranks{};
  Rank rank{};         // the caller's
  Duration timeout{};  // the first caller's counts
  // false: fail as soon as a participant is known to be gone.
  // true: always wait for the whole timeout and name all who are missing.
  bool wait_all_ranks = false;
};

// The part of one barrier that survives a restart (records.h): the decisions,
// and which ranks have received which. Ranks whose arrival awaits a decision
// call again after a restart. Rewritten with each decision.
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

// A decision of it that is kept.
struct DecisionRecord {
  std::string group;     // name
  std::string barrier;   // name
  int64_t instance = 0;  // name
  bool erased = false;
  Status status;
  BarrierReply result;
};

// The last instance of a rank that came for a decision since its series was
// written.
struct TakenRecord {
  std::string group;    // name
  std::string barrier;  // name
  Rank rank;            // name
  bool erased = false;
  int64_t instance = 0;
};

// BarrierTable numbers the instances of each (group, barrier) from 1: a rank's
// nth call arrives at instance n. An instance is decided exactly once; all its
// callers, the late ones too, get the same answer. All of it holds within one
// generation.
class BarrierTable {
 public:
  // All must outlive the table.
  BarrierTable(const Limits* limits, WaiterQuota* quota,
               const Membership* membership, const GroupTable* groups,
               Journal* journal);
  ~BarrierTable();
  BarrierTable(const BarrierTable&) = delete;
  BarrierTable& operator=(const BarrierTable&) = delete;

  // Aborts what is open and begins anew with the ranks of `formation`.
  void Reset(FormationReply formation, Instant now, Outbox& out);

  // BarrierReply, when the instance is decided; its statuses are with
  // BarrierOutcome. The caller must be a live member.
  // ABORTED (no or another generation), INVALID_ARGUMENT (rank, participants;
  // others than the group's), OUT_OF_RANGE (so late that the decision is not
  // kept), RESOURCE_EXHAUSTED.
  void Arrive(const Call& call, const BarrierRequest& request, Instant now,
              Outbox& out);

  // Takes back the member's arrivals, fails its calls with `status`, and fails
  // the instances that it takes part in, unless they wait for all ranks.
  void MemberDeparted(const Event& event, const Status& status, Instant now,
                      Outbox& out);

  // Takes back the arrival of `waiter` and fails the call with `status`; false
  // when it does not wait here.
  bool Cancel(WaiterId waiter, const Status& status, Outbox& out);

  // The newer waiter takes over the call of the older one; false when that
  // does not wait here.
  bool Retarget(WaiterId older, WaiterId newer);

  // Decides every instance whose deadline is at or before `now`.
  void Expire(Instant now, Outbox& out);

  std::optional<Instant> NextDeadline() const;

  // Forgets everything; for a job that all members have left.
  void Clear(Instant now, Outbox& out);

  SeriesRecord RecordOf(const std::string& group,
                        const std::string& barrier) const;
  DecisionRecord RecordOf(const std::string& group, const std::string& barrier,
                          int64_t instance) const;
  TakenRecord RecordOf(const std::string& group, const std::string& barrier,
                       Rank rank) const;

  // Of a new table, after its members were restored; in this order.
  void RestoreFormation(FormationReply formation);
  void Restore(SeriesRecord record);
  void Restore(DecisionRecord record);
  void Restore(const TakenRecord& record);

  // Of the open instances that end first.
  std::vector<BarrierSnapshot> Snapshot(Instant now) const;
  int64_t open() const { return static_cast<int64_t>(deadlines_.size()); }
  // What the decisions cost that are kept.
  int64_t decision_bytes() const { return decision_bytes_; }
  int64_t series() const { return static_cast<int64_t>(series_.size()); }
  int64_t waiters() const {
    return static_cast<int64_t>(places_by_waiter_.size());
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
    int64_t bytes = 0;        // that these keep
    uint64_t decided_as = 0;  // number of the decision, of all the table's
    int32_t past = 0;         // of AllPast
    bool unwritten = false;   // not journaled before the decision

    bool decided() const { return result != nullptr; }
  };

  using Key = std::pair<std::string, std::string>;  // (group, barrier)

  struct Series {
    Key key;
    std::vector<Rank> participants;        // ascending; empty: all ranks
    Rank founder;                          // who named the participants
    absl::btree_map<Rank, int64_t> taken;  // last instance of each rank
    // Those that are open, and those that somebody may still ask for.
    absl::btree_map<int64_t, Instance> instances;
    int64_t newest = 0;
    bool dropped_results = false;  // a rank may lag behind what is kept
    int32_t past_newest = 0;       // of AllPast
    int32_t gone = 0;              // participants that are in gone_
    absl::btree_set<Rank> apart;   // with a TakenRecord
    uint64_t used_at = 0;          // for the choice of whom to forget first
    uint64_t idle_as = 0;          // where it stands in idle_; 0: it does not
  };

  struct Place {
    Series* series;
    int64_t instance;
    Rank rank;
  };

  // Why a rank can arrive no more in this generation.
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
  void Settle(Series& series, Instance& instance, Instant now, Outbox& out);
  void Decide(Series& series, Instance& instance, BarrierOutcome outcome,
              absl::string_view conflict, Instant now, Outbox& out);
  using Instances = absl::btree_map<int64_t, Instance>;

  void Keep(Series& series, Instance& instance);
  Instances::iterator Drop(Series& series, Instances::iterator decided);
  void RetireInstances(Series& series);
  void ForgetDropped(Series& series);
  void Changed(Series& series);
  void Decided(const Series& series, Instance& instance);
  void Forgotten(const Series& series, const Instance& instance);
  void Take(Series& series, Rank rank, int64_t number);

  int32_t Expected(const Series& series) const;
  Rank ParticipantAt(const Series& series, int32_t place) const;
  bool TakesPart(const Series& series, Rank rank) const;
  int32_t CountGone(const Series& series) const;
  bool AllPast(const Series& series, int64_t number, int32_t& from) const;
  // Descriptions of up to `count_max`; the ranks of all others go to `others`,
  // if it is not null.
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
  absl::flat_hash_map<WaiterId, Place> places_by_waiter_;
  // Of the open instances.
  absl::btree_set<std::pair<Instant, std::pair<Key, int64_t>>> deadlines_;
  uint64_t calls_ = 0;
  // Those whose numbering may be forgotten, by used_at.
  absl::btree_map<uint64_t, Series*> idle_;
  // The decisions that are kept, the oldest first, and what they cost.
  absl::btree_map<uint64_t, std::pair<Series*, int64_t>> decisions_;
  int64_t decision_bytes_ = 0;
  uint64_t decided_ = 0;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_BARRIERS_H_
