// Collects the results of a step: answers for waiters, events for members,
// notices for logs and metrics. The driver delivers them after it has released
// the job's lock.

#ifndef MUSTER_COORDINATOR_CORE_OUTBOX_H_
#define MUSTER_COORDINATOR_CORE_OUTBOX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/rank_ranges.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

struct Reply {
  WaiterId waiter;
  Status status;
  Payload payload;
};

enum class EventKind {
  kLost,
  kFailed,
  kLeft,
  kReplaced,
  kWaiting,
  kGroupFailed,
};

// Returns "lost", "failed", "left", "replaced", "waiting" or "group_failed".
absl::string_view EventKindName(EventKind kind);

struct LeftTogether;

// Event tells the other members of a job that one of them has departed. With
// kWaiting it tells the members of the running generation that others wait for
// the next one: when the first does, and when a generation forms without all.
// With kGroupFailed, which has `group_failure` and nothing else, it tells the
// members of a group why that failed.
struct Event {
  EventKind kind = EventKind::kLost;
  MemberId member;
  Incarnation incarnation;
  std::optional<Rank> rank;  // none in a published kWaiting, always in others
  std::string host;
  int64_t pid = 0;
  std::string cause;          // `no heartbeat for 11s (lease 10s)`
  std::string last_progress;  // From DescribeProgress.
  // kFailed: those of the FailureReport.
  Status verdict;
  BarrierReply culprits;
  std::vector<Rank> blames;
  Generation generation;         // of `rank`; kWaiting: the running one
  bool generation_over = false;  // exactly one event of a generation ends it
  // kWaiting: how many wait; `member` has waited for longest.
  int32_t waiting = 0;
  // kLeft: the members that this event is about, `member` included. Null: only
  // `member`.
  std::shared_ptr<const LeftTogether> together;
  // kGroupFailed.
  GroupFailureReply group_failure;
};

// Members that left one generation soon after one another (DepartureBatcher).
struct LeftTogether {
  int32_t count = 0;
  RankRanges ranks;
  // Some of the members; their texts are cut.
  std::vector<Event> described;
};

struct Publication {
  // Shared by all events of one step.
  std::shared_ptr<const std::vector<MemberId>> audience;
  Event event;
  // Sent to a member that may have missed it.
  bool again = false;
};

enum class NoticeKind {
  kMemberRegistered,
  kMemberReplaced,
  kMemberDisconnected,
  kMemberReconnected,
  kMemberLost,
  kMemberFailed,
  kMemberLeft,
  kLeasesExtended,
  kHostsSilent,       // members of several hosts; not lost for it yet
  kHostsHeard,        // one of them; the others get a lease
  kGenerationFormed,  // duration: from the first join
  kGenerationEnded,
  kRendezvousWaiting,  // after 10 s, then every 30 s
  kRendezvousLastCall,
  kRendezvousTimedOut,
  kRendezvousClosed,
  kBarrierReleased,  // the barriers' durations: from the first arrival
  kBarrierTimedOut,
  kBarrierMemberLost,
  kBarrierConflict,
  kBarrierAborted,
  kGroupCallConflict,
  kGroupFailed,
};

// Returns "member_registered" and so on.
absl::string_view NoticeKindName(NoticeKind kind);

// Notice is one state change, for a line in the log and a metric.
struct Notice {
  NoticeKind kind = NoticeKind::kMemberRegistered;
  // `member=b rank=1 cause="..."`. Names have no control characters; causes are
  // quoted (TextInNotice).
  std::string text;
  Duration duration{};
};

// Outbox collects the outcome of one or more verbs. Clear keeps the memory.
struct Outbox {
  std::vector<Reply> replies;
  std::vector<Publication> events;
  std::vector<Notice> notices;

  void Answer(WaiterId waiter, Payload payload);
  void Fail(WaiterId waiter, Status status);
  void Note(NoticeKind kind, std::string text, Duration duration = {});
  // Sends the event to one member, which may have missed it.
  void TellAgain(const MemberId& member, Event event);

  void Clear();
  bool empty() const;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_OUTBOX_H_
