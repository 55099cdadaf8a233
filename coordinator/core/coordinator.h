// One job's coordinator: one class that contains all state machines of the job.

#ifndef MUSTER_COORDINATOR_CORE_COORDINATOR_H_
#define MUSTER_COORDINATOR_CORE_COORDINATOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/core/barriers.h"
#include "coordinator/core/call.h"
#include "coordinator/core/departure_batcher.h"
#include "coordinator/core/group_failures.h"
#include "coordinator/core/groups.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/progress.h"
#include "coordinator/core/records.h"
#include "coordinator/core/rendezvous.h"
#include "coordinator/core/reply_cache.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/core/store.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

struct CoordinatorOptions {
  MembershipOptions membership;
  Limits limits;
  // Whether TakeChanges returns the changes.
  bool durable = false;
};

// Coordinator is the whole state of one job. It reads no clock and has no
// thread: the caller passes `now`, which must not run backwards, and calls Tick
// at NextDeadline() or a little later. Not thread-safe.
//
// Every verb with a Call answers its waiter exactly once through the Outbox, in
// the same step or in a later one. The caller is checked first:
// FAILED_PRECONDITION if it names a member that is not registered or has
// departed, or an incarnation other than the current one; such a call changes
// nothing. No other error has that code, except that of a numbered mutation
// that was already acknowledged. A mutation with a sequence number is applied
// once, however often it is retried, and each retry gets the first one's
// answer. INVALID_ARGUMENT if another verb has used the number before.
class Coordinator {
 public:
  Coordinator(CoordinatorEpoch epoch, const CoordinatorOptions& options);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // `verb` calls one verb of the store, which answers the call's waiter: see
  // StoreEngine for answers and errors. `method` is its name in the protocol.
  using StoreVerb = absl::FunctionRef<void(StoreEngine&)>;
  void Read(const Call& call, Instant now, Outbox& out, StoreVerb verb);
  void Mutate(const Call& call, absl::string_view method, Instant now,
              Outbox& out, StoreVerb verb);
  // For a mutation that may wait, such as QueuePop. When the caller departs,
  // its waiting call is withdrawn and takes nothing.
  void MutateAndPark(const Call& call, absl::string_view method, Instant now,
                     Outbox& out, StoreVerb verb);

  // RegisterReply. Idempotent; a member that reconnects registers again. It may
  // have missed events: it is told again who has left its generation, what
  // ended that or its groups, or that members wait for the next generation.
  void Register(const Call& call, Registration registration, Instant now,
                Outbox& out);

  // HeartbeatReply. The call keeps the member alive even if its progress is
  // refused (Membership).
  void Heartbeat(const Call& call, std::vector<GroupProgress> progress,
                 Instant now, Outbox& out);

  // No payload. The member is gone afterwards; a retry gets FAILED_PRECONDITION
  // `... left`, which the client may take for success. The others are told at
  // once, or of several leaves together (DepartureBatcher).
  void Leave(const Call& call, absl::string_view reason, Instant now,
             Outbox& out);

  // No payload. The member is gone afterwards: all its calls but heartbeats are
  // refused. Its process still gets the events that the others get, its own
  // included, so that all see the same end of the generation.
  void ReportFailure(const Call& call, FailureReport report, Instant now,
                     Outbox& out);

  // GroupFailureReply. The caller's group failed; see GroupFailureTable. If it
  // is the default group, the verdict counts as ReportFailure of a rank that
  // has reported: it ends the generation.
  void ReportGroupFailure(const Call& call, GroupFailureReport report,
                          Instant now, Outbox& out);

  // The member's connection is gone. If the member closed it (kClosed), it is
  // lost after the reconnect grace unless it registers again; else it has its
  // whole lease. DetachWaiter handles its parked calls.
  void Disconnected(const MemberId& member, Incarnation incarnation,
                    Instant now, Outbox& out,
                    Disconnection disconnection = Disconnection::kClosed);

  // FormationReply. Counts as a mutation. A member of the running generation
  // that joins again ends it, and the others get an event. They also get one
  // when another member waits for the next generation.
  void Join(const Call& call, JoinRequest request, Instant now, Outbox& out);

  // No payload; a mutation. Closes the job's rendezvous for good.
  void CloseRendezvous(const Call& call, absl::string_view reason, Instant now,
                       Outbox& out);
  // GroupsReply; a mutation.
  void RegisterGroups(const Call& call, GroupsRequest request, Instant now,
                      Outbox& out);

  // BarrierReply. Counts as a mutation.
  void Arrive(const Call& call, const BarrierRequest& request, Instant now,
              Outbox& out);

  // Whether this call of the member was applied before: it is answered, or
  // parked.
  bool WasApplied(const MemberId& member, Incarnation incarnation,
                  SequenceNumber sequence) const;

  // The caller gave up. Withdraws its call (a join's seat, a barrier's arrival)
  // and answers it with CANCELLED. No effect on a waiter that has its answer.
  void CancelWaiter(WaiterId waiter, Outbox& out);

  // The caller's connection closed. Like CancelWaiter, except that an arrival
  // with a sequence number stays, so that its retry on another connection finds
  // it.
  void DetachWaiter(WaiterId waiter, Outbox& out);

  // Processes the leases and deadlines that are due at `now`.
  void Tick(Instant now, Outbox& out);

  // When Tick has something to do next; none: nothing is pending. May be
  // earlier than needed, never later.
  std::optional<Instant> NextDeadline() const;

  // Returns the records that have changed since the last call, in their current
  // state, each once, in no particular order.
  std::vector<Record> TakeChanges();

  // Restores the state from `records`, which may have any order. Only for a new
  // coordinator. Live members have a whole lease from `now`.
  void Restore(std::vector<Record> records, Instant now);

  JobSnapshot Snapshot(Instant now) const;
  // Contains only the epoch, the lease, the members on `host`, and which of
  // `rank_count` ranks from `first_rank` are missing in the current rendezvous.
  JobSnapshot Snapshot(absl::string_view host, Rank first_rank,
                       int32_t rank_count, Instant now) const;
  JobCounts Counts() const;

  // True if there is no live member and no parked call. The driver may drop the
  // job then.
  bool Idle() const;

  // True if a new coordinator would behave the same: nothing was ever stored,
  // no generation formed, the rendezvous is open, and no member is remembered.
  bool Blank() const;

  CoordinatorEpoch epoch() const { return epoch_; }

  // Errors: INTERNAL, with the violated invariant.
  Status CheckInvariants() const;

 private:
  // The numbered call of a parked waiter.
  struct NumberedCall {
    MemberId member;
    SequenceNumber sequence;
  };

  MemberSnapshot MakeSnapshot(const Member& member, Instant now) const;
  bool Admit(const Call& call, Instant now, Outbox& out, Member** member);
  bool AdmitMember(const Call& call, Instant now, Outbox& out, Member** member);
  bool Replay(const Call& call, absl::string_view method, Member& member,
              Outbox& out);
  void TakeOver(const Call& call, ReplyCache::Entry& entry, Outbox& out);
  void Mutate(const Call& call, absl::string_view method, Instant now,
              Outbox& out, absl::FunctionRef<void()> verb);
  void MutateAsMember(const Call& call, absl::string_view method, Instant now,
                      Outbox& out, absl::FunctionRef<void()> verb);
  void ApplyAndPark(const Call& call, absl::string_view method, Member& member,
                    Outbox& out, absl::FunctionRef<void()> verb);
  void Remember(size_t first_reply, Outbox& out);
  void SetDone(Member& member, SequenceNumber sequence, const Reply& reply);
  void Withdraw(WaiterId waiter, const Status& status, Outbox& out);
  void SettleRendezvous(Instant now, Outbox& out);
  void BeginGeneration(const FormationReply& before,
                       const FormationReply& formation, Instant now,
                       Outbox& out);
  Event WaitingEvent() const;
  void AnnounceWaiting(Outbox& out);
  void HandleAbandonment(const Member& member, Instant now, Outbox& out);
  void HandleDepartures(std::vector<Event>& departed, Instant now, Outbox& out);
  void Publish(std::vector<Event> events, Outbox& out);
  bool EndWorld(Instant now, Outbox& out);
  void Tell(std::optional<Event> event, Outbox& out);
  void RestoreDepartures(Instant now);

  const CoordinatorEpoch epoch_;
  const Limits limits_;

  Journal journal_;
  WaiterQuota quota_;
  Membership membership_;
  StoreEngine store_;
  Rendezvous rendezvous_;
  GroupTable groups_;
  GroupFailureTable failures_;
  BarrierTable barriers_;
  DepartureBatcher departures_;

  absl::flat_hash_map<WaiterId, NumberedCall> numbered_calls_;
  std::optional<Event> generation_end_;  // why the newest generation ended
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_COORDINATOR_H_
