// How members get their ranks: static rendezvous.

#ifndef MUSTER_COORDINATOR_CORE_RENDEZVOUS_H_
#define MUSTER_COORDINATOR_CORE_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"

namespace muster::coordinator::core {

struct JoinRequest {
  std::optional<Rank> rank{};  // none: the lowest one that nobody asks for
  int32_t world_size = 0;
  std::string address{};  // opaque; all members get everybody's
  Duration timeout{};
};

// What of a rendezvous survives a restart (records.h). One for each job.
struct GenerationRecord {
  FormationReply formation;  // null: none has formed
  bool running = false;
  std::optional<Event> end;  // why it is not running any more
};

// Rendezvous holds the running generation and the one that is forming. Joins
// are parked until `world_size` members have joined; then all of them get the
// same Formation. Others may not take the seat of a live member of a running
// generation. It ends when a member of it is lost, fails, is replaced, or joins
// the next one, and when its last member leaves.
class Rendezvous {
 public:
  // All must outlive the rendezvous.
  Rendezvous(const Limits* limits, WaiterQuota* quota,
             const Membership* membership, Journal* journal);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // FormationReply, when the last one has joined. Returns the formation when
  // this join was the last one, else null. The caller must be a live member.
  // INVALID_ARGUMENT (rank out of range, world size disagrees: names both
  // claimants), ALREADY_EXISTS (rank taken: names both claimants),
  // DEADLINE_EXCEEDED (lists the missing ranks), RESOURCE_EXHAUSTED.
  FormationReply Join(const Call& call, JoinRequest request, Instant now,
                      Outbox& out);

  // Ends the running generation because `member` of it waits for the next one;
  // false when that is not so.
  bool Abandon(const MemberId& member);

  // Frees the seat of a departed member and ends the generation where the
  // departure does that; true when it did.
  bool MemberDeparted(const Event& event, Outbox& out);

  // Frees the seat that `waiter` holds and fails the call with `status`; false
  // when it does not wait here.
  bool Cancel(WaiterId waiter, const absl::Status& status, Outbox& out);

  // The newer waiter takes over the call of the older one; false when that
  // does not wait here.
  bool Retarget(WaiterId older, WaiterId newer);

  // Of a new rendezvous, after its members were restored.
  void Restore(FormationReply formation, bool running);

  // Fails every join whose deadline is at or before `now`. Notes now and then
  // for whom those wait that go on waiting.
  void Expire(Instant now, Outbox& out);

  std::optional<Instant> NextDeadline() const;

  // The newest formation, or null; it stays known after its end.
  const FormationReply& formation() const { return formation_; }
  Generation generation() const;
  bool running() const { return running_; }
  int64_t waiters() const { return static_cast<int64_t>(joins_.size()); }
  int32_t forming_world_size() const { return world_size_; }

  absl::Status CheckInvariants() const;

 private:
  struct PendingJoin {
    WaiterId waiter;
    MemberId member;
    JoinRequest request;
    uint64_t order = 0;
    Instant deadline;
  };

  absl::Status CheckRequest(const Call& call, const JoinRequest& request) const;
  absl::Status CheckSeat(const Call& call, const JoinRequest& request) const;
  FormationReply Form(Instant now, Outbox& out);
  absl::btree_map<Rank, const PendingJoin*> SeatJoins() const;
  std::string WaitingText(Duration waited, Instant now) const;
  std::string DescribeMissing(Rank rank, Instant now) const;
  std::string Claimant(const MemberId& member) const;
  const Seat* LiveHolder(Rank rank) const;
  void Remove(const PendingJoin& join);

  const Limits& limits_;
  WaiterQuota& quota_;
  const Membership& membership_;
  Journal& journal_;

  // The forming generation.
  absl::btree_map<MemberId, PendingJoin> joins_;
  absl::btree_map<Rank, MemberId> claims_;  // joins that ask for a rank
  absl::flat_hash_map<WaiterId, MemberId> members_by_waiter_;
  absl::btree_set<std::pair<Instant, MemberId>> deadlines_;
  int32_t world_size_ = 0;  // 0: nobody has joined
  MemberId world_size_claimant_;
  Instant first_join_at_;
  Instant report_at_;  // when those who wait are next spoken of
  // Ranks whose members came and did not wait long enough: for the others they
  // are not the ones who are missing.
  absl::btree_map<Rank, MemberId> gave_up_;
  uint64_t next_order_ = 1;

  // The newest generation.
  FormationReply formation_;
  bool running_ = false;
  int64_t seated_ = 0;  // members of it that have not departed
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_RENDEZVOUS_H_
