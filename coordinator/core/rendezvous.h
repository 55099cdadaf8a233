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
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// How long an elastic rendezvous waits for more than its minimum, if the
// members do not say.
inline constexpr Duration kDefaultLastCall = std::chrono::seconds(30);

// A join requests a world size in one of two forms: static, with `world_size`,
// or elastic, with `min_world_size` and `max_world_size`. Fields that are 0 are
// not part of the request.
struct JoinRequest {
  // Static form only. None: Rendezvous chooses.
  std::optional<Rank> rank{};
  int32_t world_size = 0;
  std::string address{};  // opaque; every member gets all addresses
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

  // Answers with a FormationReply when TryForm has formed the generation.
  // Returns false if the call was refused. The caller must be a live member.
  // Errors: INVALID_ARGUMENT (rank or sizes out of range; another world size or
  //   last call than the others': names both claimants), ALREADY_EXISTS (rank
  //   taken: names both claimants), DEADLINE_EXCEEDED (lists the missing ranks;
  //   a static rendezvous adds an AbsenceReply), OUT_OF_RANGE (closed: says by
  //   whom), RESOURCE_EXHAUSTED.
  bool Join(const Call& call, JoinRequest request, Instant now, Outbox& out);

  // Forms the next generation if it is time and returns its formation, else
  // null. Call it after every step that has changed something.
  FormationReply TryForm(Instant now, Outbox& out);

  // Fails all joins, waiting and later ones. The running generation goes on. No
  // effect if it is closed already. The caller is a live member or, without a
  // member id, an operator.
  void Close(const Call& call, absl::string_view reason, Outbox& out);

  // Ends the running generation if its member `member` waits for the next one.
  // Returns whether it did.
  bool Abandon(const MemberId& member);

  // Frees the seat of a departed member, and ends the generation if the
  // departure requires that. Returns whether it ended.
  bool MemberDeparted(const Event& event, Outbox& out);

  // The connection of a member is back. Refuses the joins that waited for its
  // loss to get its rank.
  void MemberReturned(const MemberId& member, Outbox& out);

  // Frees the seat that `waiter` holds and fails the call with `status`.
  // Returns false if `waiter` does not wait here.
  bool Cancel(WaiterId waiter, const Status& status, Outbox& out);

  // Lets `newer` wait in place of `older`. Returns false if `older` does not
  // wait here.
  bool Retarget(WaiterId older, WaiterId newer);

  // Restores a new rendezvous, after its members.
  void Restore(FormationReply formation, bool running, std::string closed);

  // Fails every join whose deadline is at or before `now`. Now and then adds a
  // notice about missing members while joins wait.
  void Expire(Instant now, Outbox& out);

  std::optional<Instant> NextDeadline() const;

  // The newest formation, or null; it stays known after its end.
  const FormationReply& formation() const { return formation_; }
  Generation generation() const;
  bool running() const { return running_; }
  int64_t waiters() const { return static_cast<int64_t>(joins_.size()); }
  // The sizes that the waiting joins request; 0: none wait.
  int32_t forming_min_world_size() const { return terms_.min; }
  int32_t forming_world_size() const { return terms_.max; }
  // `rendezvous: 2 of 3 ranks joined in 8.9s; missing rank 2`; empty if nobody
  // waits.
  std::string Waiting(Instant now) const;
  // The first waiting members, by name.
  std::vector<MemberId> FirstWaiters(size_t count_max) const;
  // The first missing ranks of a static rendezvous, ascending. Empty for an
  // elastic one, which any member may join.
  std::vector<Rank> FirstMissing(size_t count_max) const;
  // The missing ranks among the `count` from `first`, ascending. Empty if
  // members wait without a claim, because they may get any of them.
  std::vector<Rank> FindMissing(Rank first, int32_t count) const;
  // The member that has waited for longest; null: nobody waits.
  const MemberId* first_waiter() const;
  // When the generation forms with the members that wait.
  std::optional<Instant> last_call_end() const { return last_call_end_; }
  // The member that closed it, and why: `member "a" (host-a, pid 7): finished`.
  // Empty: it is open.
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
    // A member whose connection was down held the rank. The two may be the same
    // process, restarted.
    bool contests = false;
  };

  // The terms of all waiting joins, which must agree.
  struct Terms {
    bool elastic = false;
    int32_t min = 0;  // 0: nobody waits
    int32_t max = 0;
    Duration last_call{};

    friend bool operator==(const Terms&, const Terms&) = default;
  };

  static Terms ToTerms(const JoinRequest& request);
  static std::string Text(const Terms& terms);

  Status CheckRequest(const Call& call, const JoinRequest& request);
  Status CheckForm(const Call& call, const JoinRequest& request) const;
  Status CheckSizes(const Call& call, const JoinRequest& request) const;
  Status CheckSeat(const Call& call, const JoinRequest& request);
  Status ClosedError() const;

  // Whether the joins must wait for the end of the running generation.
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
  absl::btree_map<Rank, MemberId> claims_;     // joins that claim a rank
  absl::btree_map<uint64_t, MemberId> queue_;  // by PendingJoin::order
  int32_t returned_ = 0;  // joins of members of the previous generation
  int32_t contests_ = 0;  // joins that contest a rank
  absl::flat_hash_map<WaiterId, MemberId> members_by_waiter_;
  absl::btree_set<std::pair<Instant, MemberId>> deadlines_;
  Terms terms_;
  MemberId terms_claimant_;
  // The time since which it could form if enough members came; none: it cannot.
  std::optional<Instant> open_since_;
  Instant report_at_;  // when the next notice about missing members is due
  std::optional<Instant> last_call_end_;
  // Ranks whose members joined but timed out. Errors of the other members do
  // not list them as missing.
  absl::btree_map<Rank, MemberId> gave_up_;
  uint64_t next_order_ = 1;

  // The newest generation.
  FormationReply formation_;
  bool running_ = false;
  int64_t seated_ = 0;  // members of it that have not departed
  // Seats at which the last search ended. The next one begins there, so that
  // not every join looks at every seat.
  size_t away_ = 0;    // a live member that has not joined
  size_t vacant_ = 0;  // no live member

  std::string closed_;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_RENDEZVOUS_H_
