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
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/progress.h"
#include "coordinator/core/reply_cache.h"
#include "coordinator/core/total_memory.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

struct MembershipOptions {
  // A member that is silent for this long is lost.
  Duration lease = std::chrono::seconds(10);

  // A member whose connection closed is lost after this, unless the same
  // incarnation registers again before.
  Duration reconnect_grace = std::chrono::milliseconds(250);

  // If members of several hosts fall silent together, they are more likely cut
  // off from the coordinator than dead. So they are held: none is lost until
  // one of them is heard. Then the others have a lease, or the duration of the
  // silence up to `resend_max`, because TCP may resend lost packets that late.
  // They are lost after `silent_leases_max` leases or, if no member of the job
  // is heard, after `silence_max` if that is longer. Hearing others never
  // extends this beyond the longer of both.
  int silent_leases_max = 4;
  Duration silence_max = std::chrono::minutes(10);
  Duration resend_max = std::chrono::minutes(2);

  // If the coordinator was suspended for longer than this, it blames nobody for
  // silence: all leases begin anew, because heartbeats wait in its sockets.
  Duration stall_tolerance = std::chrono::seconds(5);

  // How long a departed member is remembered. Meanwhile its incarnation is
  // fenced and errors can name its cause.
  Duration departed_retention = std::chrono::minutes(10);

  // After one leave was told, later leaves are gathered for at least this long
  // per live member (DepartureBatcher).
  Duration departure_pause_per_member = std::chrono::microseconds(10);
};

// A process's description of itself.
struct Registration {
  std::string host{};
  int64_t pid = 0;
  std::string debug_address{};  // host:port of its debug server; empty: none
};

enum class MemberState { kAlive, kDisconnected, kLost, kFailed, kLeft };
inline constexpr int kMemberStateCount = 5;

// Returns "alive", "disconnected", "lost", "failed" or "left".
absl::string_view MemberStateName(MemberState state);

// How a member lost its connection.
enum class Disconnection {
  kClosed,     // the member closed it, or its process has ended
  kDismissed,  // this coordinator closed it
  kRelayGone,  // the relay of its host went away; the member may well live
};

struct Member {
  // `memory` is Limits::memory.
  explicit Member(MemoryShare* memory = nullptr)
      : replies(memory), memory(memory) {}

  MemberId id;
  Incarnation incarnation;
  Registration registration;
  MemberState state = MemberState::kAlive;
  // Not kClosed: not heard since this coordinator started again or closed the
  // member's connection, or since the relay of its host went away. Such a
  // member is kDisconnected for a whole lease.
  Disconnection disconnection = Disconnection::kClosed;
  bool dismissed() const { return disconnection != Disconnection::kClosed; }
  Instant state_since;
  Instant heard_at;    // last sign of life: any call
  Instant expires_at;  // when Expire next examines it
  // Set if it is silent together with other hosts: not lost before this time.
  std::optional<Instant> held_until;
  std::string cause;  // why it departed; empty: it is live
  std::vector<GroupProgress> progress;
  Instant progress_at;
  std::optional<Rank> rank;  // in `generation`
  Generation generation;
  // Earlier incarnations, the newest last. A late duplicate of their
  // registration must not bring them back.
  std::deque<Incarnation> retired;
  ReplyCache replies;
  uint64_t acknowledged_by = 0;  // message of the last acknowledgement
  MemoryHeld memory;             // of everything except `replies`

  // True if registered, and neither lost, failed nor left.
  bool live() const {
    return state == MemberState::kAlive || state == MemberState::kDisconnected;
  }
};

// The part of a member that survives a restart (records.h).
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
  // Errors: FAILED_PRECONDITION (`stale incarnation 1 of member "b", current is
  //   2`, `member "b" is not registered`, `member "b" (incarnation 1) was lost:
  //   no heartbeat for 11s (lease 10s)`).
  StatusOr<Member*> Admit(const Call& call, Instant now, Outbox& out);

  // Marks a disconnected or restored member as alive.
  static void Return(Member& member, Instant now);

  // Registers the caller. The same incarnation again is a reconnection; a new
  // one replaces the old.
  // Errors: INVALID_ARGUMENT (no name or incarnation), FAILED_PRECONDITION (an
  //   incarnation that was replaced, lost, failed or left), RESOURCE_EXHAUSTED.
  StatusOr<Member*> Register(const Call& call, Registration registration,
                             Instant now, std::vector<Event>& departed,
                             Outbox& out);

  // Stores the progress of a member that Admit has returned. The call is a sign
  // of life even if the progress is refused. If the job's memory has no room
  // for a long list, keeps only the group that has been in its collective for
  // longest.
  // Errors: INVALID_ARGUMENT (a negative number), RESOURCE_EXHAUSTED.
  Status Heartbeat(Member& member, std::vector<GroupProgress> progress,
                   Instant now);

  void Leave(Member& member, absl::string_view reason, Instant now,
             std::vector<Event>& departed, Outbox& out);
  void Fail(Member& member, FailureReport report, Instant now,
            std::vector<Event>& departed, Outbox& out);

  // Whether the caller is a member that has reported its failure.
  bool HasReported(const Call& call) const;

  // The event for the others when a live member gives up its rank.
  Event Abandoned(const Member& member, Instant now) const;

  // The event for the others of a member that has left or was lost.
  Event DepartedEvent(const Member& member, Instant now) const;

  // The member's connection is gone. Does nothing if the incarnation is not the
  // current one.
  void Disconnected(const MemberId& id, Incarnation incarnation, Instant now,
                    Outbox& out,
                    Disconnection disconnection = Disconnection::kClosed);

  // Declares members lost whose lease or grace has ended, and forgets old
  // departures.
  void Expire(Instant now, std::vector<Event>& departed, Outbox& out);

  std::optional<Instant> NextDeadline() const;

  // Null if unknown.
  const Member* Find(const MemberId& id) const;
  Member* Find(const MemberId& id);

  // Records that a member holds `rank` in `generation`.
  void AssignRank(const MemberId& id, Rank rank, Generation generation);
  void ClearRank(const MemberId& id);

  MemberRecord MakeRecord(const MemberId& id) const;

  // Adds a member that the table does not have. A live one counts as
  // disconnected, and has a whole lease to come back.
  void Restore(MemberRecord record, Instant now);

  // The members that get events, ascending: live members, and those that
  // reported a failure, until they are forgotten.
  std::vector<MemberId> Listeners() const;

  const absl::btree_map<MemberId, Member>& members() const { return members_; }
  int64_t live() const { return live_; }
  const MembershipOptions& options() const { return options_; }

  // Recomputes the memory that the members hold.
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
  // Whether silent members are held. The first of them that is heard ends this.
  bool holding_ = false;
  int64_t held_ = 0;  // live members that have a `held_until`
  // The hold began when no member of the job was heard.
  bool all_silent_ = false;
};

// The error for a call of a member whose departure is `event`.
Status DepartedError(const Event& event);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_MEMBERSHIP_H_
