// Decides why a group failed, from what its ranks report.

#ifndef MUSTER_COORDINATOR_CORE_GROUP_FAILURES_H_
#define MUSTER_COORDINATOR_CORE_GROUP_FAILURES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "coordinator/core/call.h"
#include "coordinator/core/groups.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// Kinds of failures, by increasing weight: a report counts before all reports
// of a lesser kind. The timeout of a late rank counts after all others.
enum class GroupFailureKind {
  kSymptom,   // a connection broke
  kTimeout,   // a collective took too long
  kMismatch,  // ranks do not run the same collective
  kDecision,  // the rank knows the cause, or is the cause
};

struct GroupFailureReport {
  Generation generation{};
  std::string group{};     // its name; empty: the default group
  std::string instance{};  // distinguishes groups of one name
  GroupFailureKind kind = GroupFailureKind::kSymptom;
  // The rank's conclusion. The verdict, if nobody knows better.
  FailureReport error{};
  std::vector<Rank> culprits{};  // those in `error`, ascending
  // The start of a text about the call that failed.
  std::string call{};
  // base::Fingerprint of the collective that failed; empty: none.
  std::string fingerprint{};
  // kSymptom: how long to wait for a better explanation.
  Duration wait{};
  // kTimeout: how long after its timeout the rank detected the failure.
  Duration overtime{};
  // The rank came when the others were about to give up, or was stopped until
  // then.
  bool late = false;
};

// The part of a failure that survives a restart (records.h): the verdict of a
// group other than the default one, whose verdict is the generation's end.
struct GroupFailureRecord {
  std::string group;     // name
  std::string instance;  // name
  bool erased = false;
  GroupFailureReply verdict;
};

// GroupFailureTable makes one verdict out of the reports about a broken group:
//
//  - A decision counts at once.
//  - After a mismatch it waits up to a second for the collectives of all ranks,
//    and blames the ranks that differ from most.
//  - After a timeout it waits up to 2 seconds for the other ranks, which time
//    out at about the same time, and blames those that did not come or came
//    late.
//  - A broken connection is a symptom. If a rank that it blames has left in
//    peace, that is the cause.
//
// If a member of the group departs otherwise or joins the next generation, or
// the verdict of the default group blames a member, that event tells all ranks,
// and there is no verdict.
//
// It waits no longer than for the last rank that lives or has failed. The best
// report counts: of equal ones that with the least overtime or wait, then the
// first; the timeout of a late rank only without any other report. A rank that
// reports later gets the verdict in the answer. Open failures do not survive a
// restart: ranks repeat their reports until they have a verdict.
//
// If there are too many failures (Limits), the oldest is forgotten.
class GroupFailureTable {
 public:
  // The arguments must outlive the table.
  GroupFailureTable(const Limits* limits, const Membership* membership,
                    const GroupTable* groups, Journal* journal);
  GroupFailureTable(const GroupFailureTable&) = delete;
  GroupFailureTable& operator=(const GroupFailureTable&) = delete;

  // Forgets all failures. Later ones are of `formation`.
  void Reset(FormationReply formation);

  // Forgets all failures; for a job that all members have left.
  void Clear() { Reset(formation_); }

  // Answers with a GroupFailureReply: the verdict, null if there is none yet or
  // the group is the default one, or if an event has ended the group, of which
  // the caller is told again. Tells a verdict to all members of the group, and
  // that a collective timed out. The caller must be a live member, or one that
  // has failed.
  // Errors: ABORTED (as GroupTable::FindRank), INVALID_ARGUMENT (the group is
  //   not registered, or without the caller; a later generation; the instance
  //   is no name), RESOURCE_EXHAUSTED (name_bytes).
  void Report(const Call& call, GroupFailureReport report, Instant now,
              Outbox& out);

  // Tells the caller, which has `rank`, again what its groups were told: it may
  // have missed that.
  void TellAgain(const Call& call, Rank rank, Outbox& out) const;

  void MemberDeparted(const Event& event, Instant now, Outbox& out);

  // Decides the failures that are due, until one is that of the default group:
  // its verdict may end other groups.
  void Expire(Instant now, Outbox& out);

  std::optional<Instant> NextDeadline() const;

  // The verdict of the default group: the caller lets the member fail with it.
  struct WorldVerdict {
    MemberId member;
    FailureReport error;
  };
  std::optional<WorldVerdict> TakeWorldVerdict() {
    return std::exchange(world_verdict_, std::nullopt);
  }

  GroupFailureRecord MakeRecord(const std::string& group,
                                const std::string& instance) const;

  // Restore a new table, in this order.
  void RestoreFormation(FormationReply formation) {
    Reset(std::move(formation));
  }
  void Restore(const Event& departed) {
    departed_.emplace(*departed.rank, departed);
  }
  void Restore(GroupFailureRecord record);

  int64_t size() const { return static_cast<int64_t>(failures_.size()); }
  int64_t bytes() const { return bytes_; }

  Status CheckInvariants() const;

 private:
  using Key = std::pair<std::string, std::string>;  // (group, instance)

  struct Failure {
    std::vector<Rank> ranks;  // of the group; empty: decided
    absl::btree_map<Rank, GroupFailureReport> reports;
    Rank best;                       // whose report counts
    size_t past = 0;                 // where AllReported resumes
    absl::btree_set<Rank> suspects;  // all that reports blame
    std::optional<Rank> left;        // one of these that left in peace
    Instant deadline;
    bool told = false;          // that a collective timed out
    GroupFailureReply verdict;  // null: open
    int64_t bytes = 0;
    uint64_t number = 0;
  };

  using Failures = absl::btree_map<Key, Failure>;

  const Seat& FindSeat(Rank rank) const;
  const Member* FindMember(Rank rank) const;
  bool HasLeft(Rank rank) const;
  StatusOr<const std::vector<Rank>*> FindRanks(const GroupFailureReport& report,
                                               Rank caller) const;
  const Event* FindEnd(const std::vector<Rank>& ranks, bool is_world) const;
  Failures::iterator Open(const Key& key, std::vector<Rank> ranks);
  void Add(Failure& failure, Rank rank, GroupFailureReport report, Instant now);
  bool AllReported(Failure& failure) const;
  // Decides the failure if it is time.
  void TryDecide(Failures::iterator failure, Instant now, Outbox& out);
  FailureReport Conclude(const Failure& failure, Instant now) const;
  void BlameTheLeft(const Failure& failure, Rank left, Instant now,
                    FailureReport& error) const;
  void BlameTheStuck(const Failure& failure, const std::string& group,
                     Instant now, FailureReport& error) const;
  void BlameTheOdd(const Failure& failure, bool in_world, Instant now,
                   FailureReport& error) const;
  BarrierReply Describe(const std::vector<Rank>& culprits,
                        absl::string_view group, Instant now) const;
  GroupFailureReply Make(const Key& key, FailureReport error) const;
  void Tell(const Failure& failure, GroupFailureReply what, Outbox& out) const;
  void Forget(Failures::iterator failure);
  static int64_t FailureBytes(const Key& key, const Failure& failure);
  void Count(Failure& failure, int64_t bytes);

  const Limits& limits_;
  const Membership& membership_;
  const GroupTable& groups_;
  Journal& journal_;

  FormationReply formation_;
  std::vector<Rank> world_;  // all ranks
  // The first departure of each rank. Of reports that blame others only the one
  // that has ended the generation.
  absl::btree_map<Rank, Event> departed_;
  Failures failures_;
  absl::btree_set<std::pair<Instant, Key>> deadlines_;  // of open failures
  absl::btree_map<uint64_t, Key> oldest_;               // by number
  uint64_t failed_ = 0;
  int64_t bytes_ = 0;
  std::optional<WorldVerdict> world_verdict_;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_GROUP_FAILURES_H_
