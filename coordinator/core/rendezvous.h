// Assigns ranks to members: static and elastic rendezvous.

#ifndef MUSTER_COORDINATOR_CORE_RENDEZVOUS_H_
#define MUSTER_COORDINATOR_CORE_RENDEZVOUS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"

namespace muster::coordinator::core {

// How long an elastic rendezvous waits for more than its minimum, if the
// members do not say.
inline constexpr Duration kDefaultLastCall = std::chrono::seconds(30);

// A join requests a world size in one of two forms: static, with `world_size`,
// or elastic, with `min_world_size` and `max_world_size`. Fields that are 0 are
// not part of the request.
struct JoinRequest {
  // Static form only. None: see Rendezvous.
  std::optional<Rank> rank{};
  int32_t world_size = 0;
  std::string address{};  // opaque; all members get everybody's
  Duration timeout{};
  int32_t min_world_size = 0;
  int32_t max_world_size = 0;
  // Elastic form only. None: kDefaultLastCall.
  std::optional<Duration> last_call{};
};

// The part of a rendezvous that survives a restart (records.h). One per job.
struct GenerationRecord {
  FormationReply formation;  // null: none has formed
  bool running = false;
  std::optional<Event> end;  // why it is not running any more
  std::string closed;        // Rendezvous::closed
};

// Rendezvous holds the running generation and the one that is forming. Joins
// are parked until the latter forms; then every member with a seat gets the
// same Formation. A generation ends when one of its members is lost, fails, is
// replaced, or joins the next one, and when its last member leaves.
//
// A generation forms as soon as the maximum number of members waits, or at the
// end of the last call. The last call begins when the minimum waits, and is
// cancelled when fewer do. Live members of the previous generation may still be
// on their way; they have until the end of the last call before newcomers get
// their seats. A member without a seat keeps waiting for the next generation.
//
// A static rendezvous has `world_size` as minimum and maximum and no last call.
// In addition, a member may claim a rank, and no other member may take the seat
// of a live member of a running generation. In the elastic form newcomers wait
// for the end of a running generation.
//
// Ranks are assigned in this order: claimed ranks; then a member, whatever its
// incarnation, keeps its rank of the previous generation; the others get the
// lowest free ranks, in the order in which they joined.
class Rendezvous {
 public:
  // All must outlive the rendezvous.
  Rendezvous(const Limits* limits, WaiterQuota* quota,
             const Membership* membership, Journal* journal);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // FormationReply, when Settle has formed the generation. False when the call
  // was refused. The caller must be a live member.
  // INVALID_ARGUMENT (rank or sizes out of range; another world size or last
  // call than the others': names both claimants), ALREADY_EXISTS (rank taken:
  // names both claimants), DEADLINE_EXCEEDED (lists who is missing; a static
  // rendezvous answers with an AbsenceReply),
  // OUT_OF_RANGE (closed: says by whom), RESOURCE_EXHAUSTED.
  bool Join(const Call& call, JoinRequest request, Instant now, Outbox& out);

  // Forms the next generation if it is time; returns its formation, else null.
  // To be called after every step that something has changed in.
  FormationReply Settle(Instant now, Outbox& out);

  // Fails all joins, these and all later ones. The running generation goes on.
  // No effect when it is closed already. The caller is a live member, or none:
  // then it is an operator.
  void Close(const Call& call, absl::string_view reason, Outbox& out);

  // Ends the running generation because `member` of it waits for the next one;
  // false when that is not so.
  bool Abandon(const MemberId& member);

  // Frees the seat of a departed member and ends the generation where the
  // departure does that; true when it did.
  bool MemberDeparted(const Event& event, Outbox& out);

  // The connection of a member is back: who waited for its loss, to have its
  // rank, is refused.
  void MemberReturned(const MemberId& member, Outbox& out);

  // Frees the seat that `waiter` holds and fails the call with `status`; false
  // when it does not wait here.
  bool Cancel(WaiterId waiter, const Status& status, Outbox& out);

  // The newer waiter takes over the call of the older one; false when that
  // does not wait here.
  bool Retarget(WaiterId older, WaiterId newer);

  // Of a new rendezvous, after its members were restored.
  void Restore(FormationReply formation, bool running, std::string closed);

  // Fails every join whose deadline is at or before `now`. Notes now and then
  // for whom those wait that go on waiting.
  void Expire(Instant now, Outbox& out);

  std::optional<Instant> NextDeadline() const;

  // The newest formation, or null; it stays known after its end.
  const FormationReply& formation() const { return formation_; }
  Generation generation() const;
  bool running() const { return running_; }
  int64_t waiters() const { return static_cast<int64_t>(joins_.size()); }
  // Of the joins that wait; 0: none.
  int32_t forming_min_world_size() const { return terms_.min; }
  int32_t forming_world_size() const { return terms_.max; }
  // `rendezvous: 2 of 3 ranks joined in 8.9s; missing rank 2`; empty when
  // nobody waits.
  std::string Waiting(Instant now) const;
  // Of those that wait the first ones, by name.
  std::vector<MemberId> FirstWaiters(size_t count_max) const;
  // Of those that a static rendezvous waits for the first ones, ascending; of
  // an elastic one it is not known who comes.
  std::vector<Rank> FirstMissing(size_t count_max) const;
  // The same of `count` ranks from `first` on, ascending. Nobody where members
  // wait that claim no rank: they may get any of them.
  std::vector<Rank> MissingOf(Rank first, int32_t count) const;
  // Null when nobody waits: who has waited for longest.
  const MemberId* first_waiter() const;
  // When it forms with those that wait.
  std::optional<Instant> last_call_end() const { return last_call_end_; }
  // By whom and why it was closed, `member "a" (host-a, pid 7): finished`;
  // empty when it was not.
  const std::string& closed() const { return closed_; }

  Status CheckInvariants() const;

 private:
  struct PendingJoin {
    WaiterId waiter;
    MemberId member;
    JoinRequest request;
    uint64_t order = 0;
    Instant joined_at;
    Instant deadline;
    // Its rank was held by a member whose connection was down: the two may be
    // one and the same, started again.
    bool contests = false;
  };

  // What all that wait must agree about.
  struct Terms {
    bool elastic = false;
    int32_t min = 0;  // 0: nobody waits
    int32_t max = 0;
    Duration last_call{};

    friend bool operator==(const Terms&, const Terms&) = default;
  };

  static Terms TermsOf(const JoinRequest& request);
  static std::string Text(const Terms& terms);

  Status CheckRequest(const Call& call, const JoinRequest& request);
  Status CheckForm(const Call& call, const JoinRequest& request) const;
  Status CheckSizes(const Call& call, const JoinRequest& request) const;
  Status CheckSeat(const Call& call, const JoinRequest& request);
  Status ClosedError() const;

  // Whether those that wait must wait for the end of the running generation.
  bool Held() const { return terms_.elastic && running_; }
  bool AwaitsReturn();
  bool AwaitsLoss() const;
  const Seat* OtherHolder(Rank rank, const MemberId& member) const;
  Status HeldError(const Seat& holder, Rank rank,
                   const MemberId& claimant) const;
  bool IsAway(const Seat& seat) const;
  bool IsReturn(const PendingJoin& join) const;
  bool AllSeatsHeld(const Call& call, int32_t world_size);
  absl::flat_hash_map<MemberId, Rank> RanksBefore() const;
  FormationReply Form(Instant now, Outbox& out);
  absl::btree_map<Rank, MemberId> SeatJoins() const;
  void Remove(const PendingJoin& join);

  // The texts of errors and events.
  std::string WaitingText(Duration waited, Instant now) const;
  std::string ElasticWaitingText(Duration waited, Instant now) const;
  std::vector<Rank> MissingRanks() const;
  AbsenceReply Absent() const;
  std::string DescribeMissing(Rank rank, Instant now) const;
  std::string Claimant(const MemberId& member) const;
  const Seat* LiveHolder(Rank rank) const;

  const Limits& limits_;
  WaiterQuota& quota_;
  const Membership& membership_;
  Journal& journal_;

  // The forming generation.
  absl::btree_map<MemberId, PendingJoin> joins_;
  absl::btree_map<Rank, MemberId> claims_;     // joins that ask for a rank
  absl::btree_map<uint64_t, MemberId> queue_;  // by PendingJoin::order
  int32_t returned_ = 0;  // joins of members of the generation before
  int32_t contests_ = 0;  // joins that contest a rank
  absl::flat_hash_map<WaiterId, MemberId> members_by_waiter_;
  absl::btree_set<std::pair<Instant, MemberId>> deadlines_;
  Terms terms_;
  MemberId terms_claimant_;
  // Since when it could form if enough came; none: it could not.
  std::optional<Instant> open_since_;
  Instant report_at_;  // when those who wait are next spoken of
  std::optional<Instant> last_call_end_;
  // Ranks whose members came and did not wait long enough: for the others they
  // are not the ones who are missing.
  absl::btree_map<Rank, MemberId> gave_up_;
  uint64_t next_order_ = 1;

  // The newest generation.
  FormationReply formation_;
  bool running_ = false;
  int64_t seated_ = 0;  // members of it that have not departed
  // Seats of it, where the one that was looked for was found last. There it is
  // looked for first, so that not every join looks at every seat.
  size_t away_ = 0;    // a live member that is not back
  size_t vacant_ = 0;  // nobody live

  std::string closed_;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_RENDEZVOUS_H_
