#include "coordinator/core/outbox.h"

#include <utility>

namespace muster::coordinator::core {

absl::string_view EventKindName(EventKind kind) {
  switch (kind) {
    case EventKind::kLost:
      return "lost";
    case EventKind::kFailed:
      return "failed";
    case EventKind::kLeft:
      return "left";
    case EventKind::kReplaced:
      return "replaced";
    case EventKind::kGroupFailed:
      return "group_failed";
    case EventKind::kWaiting:
      return "waiting";
  }
  return "unknown";
}

absl::string_view NoticeKindName(NoticeKind kind) {
  switch (kind) {
    case NoticeKind::kMemberRegistered:
      return "member_registered";
    case NoticeKind::kMemberReplaced:
      return "member_replaced";
    case NoticeKind::kMemberDisconnected:
      return "member_disconnected";
    case NoticeKind::kMemberReconnected:
      return "member_reconnected";
    case NoticeKind::kMemberLost:
      return "member_lost";
    case NoticeKind::kMemberFailed:
      return "member_failed";
    case NoticeKind::kMemberLeft:
      return "member_left";
    case NoticeKind::kLeasesExtended:
      return "leases_extended";
    case NoticeKind::kHostsSilent:
      return "hosts_silent";
    case NoticeKind::kHostsHeard:
      return "hosts_heard";
    case NoticeKind::kGenerationFormed:
      return "generation_formed";
    case NoticeKind::kGenerationEnded:
      return "generation_ended";
    case NoticeKind::kRendezvousWaiting:
      return "rendezvous_waiting";
    case NoticeKind::kRendezvousLastCall:
      return "rendezvous_last_call";
    case NoticeKind::kRendezvousTimedOut:
      return "rendezvous_timed_out";
    case NoticeKind::kRendezvousClosed:
      return "rendezvous_closed";
    case NoticeKind::kBarrierReleased:
      return "barrier_released";
    case NoticeKind::kBarrierTimedOut:
      return "barrier_timed_out";
    case NoticeKind::kBarrierMemberLost:
      return "barrier_member_lost";
    case NoticeKind::kBarrierConflict:
      return "barrier_conflict";
    case NoticeKind::kBarrierAborted:
      return "barrier_aborted";
    case NoticeKind::kGroupCallConflict:
      return "group_call_conflict";
    case NoticeKind::kGroupFailed:
      return "group_failed";
  }
  return "unknown";
}

void Outbox::Answer(WaiterId waiter, Payload payload) {
  replies.push_back(Reply{waiter, OkStatus(), std::move(payload)});
}

void Outbox::Fail(WaiterId waiter, Status status) {
  replies.push_back(Reply{waiter, std::move(status), std::monostate()});
}

void Outbox::Note(NoticeKind kind, std::string text, Duration duration) {
  notices.push_back(Notice{kind, std::move(text), duration});
}

void Outbox::TellAgain(const MemberId& member, Event event) {
  events.push_back(
      Publication{std::make_shared<const std::vector<MemberId>>(1, member),
                  std::move(event), /*again=*/true});
}

void Outbox::Clear() {
  replies.clear();
  events.clear();
  notices.clear();
}

bool Outbox::empty() const {
  return replies.empty() && events.empty() && notices.empty();
}

}  // namespace muster::coordinator::core
