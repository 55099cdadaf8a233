// The processes of one job: which are registered, alive or gone, and why.

#ifndef MUSTER_COORDINATOR_CORE_MEMBERSHIP_H_
#define MUSTER_COORDINATOR_CORE_MEMBERSHIP_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/progress.h"
#include "coordinator/core/reply_cache.h"
#include "coordinator/core/total_memory.h"

namespace muster::coordinator::core {

struct MembershipOptions {
  // A member that is silent for this long is lost.
  Duration lease = std::chrono::seconds(10);

  // A member whose connection closed is lost after this, unless the same
  // incarnation registers again before.
  Duration reconnect_grace = std::chrono::milliseconds(250);

  // Members of several hosts that fall silent together are more likely cut off
  // with the coordinator than dead. None of them is lost before one is heard
  // again; then the others have a lease, or as long as the silence was and at
  // most `resend_max`: so much later TCP may send again what was lost. But they
  // are lost after this many leases, or, where no member of the job is heard
  // and so none waits to be told, after `silence_max`, if that is more;
  // whatever is heard meanwhile gives them no more than that.
  int silent_leases_max = 4;
  Duration silence_max = std::chrono::minutes(10);
  Duration resend_max = std::chrono::minutes(2);

  // A coordinator that slept for longer than this blames nobody for silence:
  // all leases begin anew, because the heartbeats are waiting in its sockets.
  Duration stall_tolerance = std::chrono::seconds(5);

  // How long the record of a departed member is kept: its incarnation is
  // fenced and its cause of departure can be told.
  Duration departed_retention = std::chrono::minutes(10);

  // After a leave was told, those that follow are gathered for so long for each
  // live member, or longer (DepartureBatcher).
  Duration departure_pause_per_member = std::chrono::microseconds(10);
};

// What a process tells about itself.
struct Registration {
  std::string host{};
  int64_t pid = 0;
  std::string debug_address{};  // host:port of its debug server; empty: none
};

enum class MemberState { kAlive, kDisconnected, kLost, kFailed, kLeft };
inline constexpr int kMemberStateCount = 5;

// Returns "alive", "disconnected", "lost", "failed" or "left".
absl::string_view MemberStateName(MemberState state);

struct Member {
  // `memory` as Limits's.
  explicit Member(MemoryShare* memory = nullptr)
      : replies(memory), memory(memory) {}

  MemberId id;
  Incarnation incarnation;
  Registration registration;
  MemberState state = MemberState::kAlive;
  // Not heard of since the coordinator was started again, or ended its
  // connection itself: kDisconnected then, for a whole lease.
  bool dismissed = false;
  Instant state_since;
  Instant heard_at;    // last sign of life: any call counts
  Instant expires_at;  // when Expire looks at it next
  // Its silence is one of several hosts: until then it is not lost for it.
  std::optional<Instant> held_until;
  std::string cause;  // of its departure; empty while it is live
  std::vector<GroupProgress> progress;
  Instant progress_at;
  std::optional<Rank> rank;  // in `generation`
  Generation generation;
  // Earlier incarnations, the newest last: a late duplicate of their
  // registration must not bring them back.
  std::deque<Incarnation> retired;
  ReplyCache replies;
  uint64_t acknowledged_by = 0;  // the newest Call::message of those
  MemoryHeld memory;             // of all of it but `replies`

  // Registered, and neither lost, failed nor left.
  bool live() const {
    return state == MemberState::kAlive || state == MemberState::kDisconnected;
  }
};

// What of a member survives a restart (records.h).
struct MemberRecord {
  MemberId id;  // name
  bool erased = false;
  Incarnation incarnation;
  Registration registration;
  MemberState state = MemberState::kAlive;  // or how it departed
  std::string cause;
  std::optional<Rank> rank;
  Generation generation;
  std::deque<Incarnation> retired;
};

// Membership is the table of a job's members.
//
// A verb that makes a member depart appends an Event to `departed` for it; the
// caller handles the consequences.
class Membership {
 public:
  // `limits` and `journal` must outlive the table.
  Membership(const MembershipOptions& options, const Limits* limits,
             Journal* journal);

  // Returns the member that calls, and counts the call as a sign of life.
  // FAILED_PRECONDITION (`stale incarnation 1 of member "b", current is 2`,
  // `member "b" is not registered`, `member "b" (incarnation 1) was lost: no
  // heartbeat for 11s (lease 10s)`).
  StatusOr<Member*> Admit(const Call& call, Instant now, Outbox& out);

  // A member that was disconnected, or restored, is there again.
  static void Return(Member& member, Instant now);

  // Registers the caller. The same incarnation again is a reconnection; a new
  // one replaces the old.
  // INVALID_ARGUMENT (no name or incarnation), FAILED_PRECONDITION (an
  // incarnation that was replaced, lost, failed or left), RESOURCE_EXHAUSTED.
  StatusOr<Member*> Register(const Call& call, Registration registration,
                             Instant now, std::vector<Event>& departed,
                             Outbox& out);

  // Stores the progress of a member that Admit has returned. When it refuses
  // that, the call was a sign of life all the same. Where the job's memory has
  // no room for a long list, keeps the group that has been in its collective
  // for longest.
  // INVALID_ARGUMENT (a negative number), RESOURCE_EXHAUSTED.
  Status Heartbeat(Member& member, std::vector<GroupProgress> progress,
                   Instant now);

  void Leave(Member& member, absl::string_view reason, Instant now,
             std::vector<Event>& departed, Outbox& out);
  void Fail(Member& member, FailureReport report, Instant now,
            std::vector<Event>& departed, Outbox& out);

  // Whether the caller is a member that has reported its failure.
  bool HasReported(const Call& call) const;

  // What the others are told when a live member gives up its rank.
  Event Abandoned(const Member& member, Instant now) const;

  // What the others were told, or would be, of a member that left.
  Event LeftEvent(const Member& member, Instant now) const;

  // The connection of the member closed, or was ended here (`dismissed`). No
  // effect on another incarnation.
  void Disconnected(const MemberId& id, Incarnation incarnation, Instant now,
                    Outbox& out, bool dismissed = false);

  // Declares lost whose lease or grace has ended, and forgets old departures.
  void Expire(Instant now, std::vector<Event>& departed, Outbox& out);

  std::optional<Instant> NextDeadline() const;

  // Null when unknown.
  const Member* Find(const MemberId& id) const;
  Member* Find(const MemberId& id);

  // Remembers which rank a member holds since `generation` formed.
  void AssignRank(const MemberId& id, Rank rank, Generation generation);
  void ClearRank(const MemberId& id);

  MemberRecord RecordOf(const MemberId& id) const;

  // Of a table that has no such member: a live one counts as disconnected, with
  // a whole lease to come back.
  void Restore(MemberRecord record, Instant now);

  // Who is told of events, ascending: the live, and those that reported a
  // failure, which listen until they go.
  std::vector<MemberId> Listeners() const;

  const absl::btree_map<MemberId, Member>& members() const { return members_; }
  int64_t live() const { return live_; }
  const MembershipOptions& options() const { return options_; }

  // Sums up anew the memory that the members hold.
  int64_t CountMemory() const;

  Status CheckInvariants() const;

 private:
  Status CheckRegistration(const Call& call,
                           const Registration& registration) const;
  Event Depart(Member& member, EventKind kind, std::string cause, Instant now,
               Outbox& out);
  void Schedule(Member& member, Instant at);
  void Forget(const Member& member);
  bool ForgetOldestDeparted();
  static void Account(Member& member);
  void ExtendLeases(Instant now, Outbox& out);
  void Heard(Member& member, Instant now, Outbox& out);
  void HoldSilent(Instant now, Outbox& out);
  void EndHold(Duration left, Instant now, Outbox& out);
  void Release(Member& member);
  Duration LongestHold() const;
  Instant DueAt(const Member& member) const;

  const MembershipOptions options_;
  const Limits& limits_;
  Journal& journal_;
  absl::btree_map<MemberId, Member> members_;
  // (expires_at, member). A call moves heard_at only; Expire then finds that
  // the member is not due yet and schedules it anew.
  absl::btree_set<std::pair<Instant, MemberId>> schedule_;
  int64_t live_ = 0;
  // Members are held, and which of them is heard first ends that.
  bool holding_ = false;
  int64_t held_ = 0;  // the live ones with a `held_until`
  // The hold began when no member of the job was heard.
  bool all_silent_ = false;
};

// The error for a call of a member that has departed as `event` says.
Status DepartedError(const Event& event);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_MEMBERSHIP_H_
