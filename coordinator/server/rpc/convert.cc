#include "coordinator/server/rpc/convert.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "coordinator/core/membership.h"

namespace muster::coordinator {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

v1::MemberState ToState(core::MemberState state) {
  switch (state) {
    case core::MemberState::kAlive:
      return v1::MEMBER_STATE_ALIVE;
    case core::MemberState::kDisconnected:
      return v1::MEMBER_STATE_DISCONNECTED;
    case core::MemberState::kLost:
      return v1::MEMBER_STATE_LOST;
    case core::MemberState::kFailed:
      return v1::MEMBER_STATE_FAILED;
    case core::MemberState::kLeft:
      return v1::MEMBER_STATE_LEFT;
  }
  return v1::MEMBER_STATE_UNSPECIFIED;
}

v1::MemberState ToState(core::MissingCause cause) {
  switch (cause) {
    case core::MissingCause::kLate:
      return v1::MEMBER_STATE_ALIVE;
    case core::MissingCause::kLost:
      return v1::MEMBER_STATE_LOST;
    case core::MissingCause::kFailed:
      return v1::MEMBER_STATE_FAILED;
    case core::MissingCause::kLeft:
      return v1::MEMBER_STATE_LEFT;
    case core::MissingCause::kReplaced:
      return v1::MEMBER_STATE_REPLACED;
  }
  return v1::MEMBER_STATE_UNSPECIFIED;
}

v1::MemberState ToState(core::EventKind kind) {
  switch (kind) {
    case core::EventKind::kLost:
      return v1::MEMBER_STATE_LOST;
    case core::EventKind::kFailed:
      return v1::MEMBER_STATE_FAILED;
    case core::EventKind::kLeft:
      return v1::MEMBER_STATE_LEFT;
    case core::EventKind::kReplaced:
      return v1::MEMBER_STATE_REPLACED;
    case core::EventKind::kWaiting:
    case core::EventKind::kGroupFailed:
      return v1::MEMBER_STATE_ALIVE;
  }
  return v1::MEMBER_STATE_UNSPECIFIED;
}

int64_t Milliseconds(core::Duration duration) {
  return duration_cast<milliseconds>(duration).count();
}

}  // namespace

core::Duration ToDuration(const google::protobuf::Duration& duration) {
  constexpr int64_t kSecondsMax =
      duration_cast<seconds>(core::Duration::max()).count() - 1;
  if (duration.seconds() >= kSecondsMax) return core::Duration::max();
  if (duration.seconds() <= -kSecondsMax) return core::Duration::min();
  return seconds(duration.seconds()) + nanoseconds(duration.nanos());
}

Status CheckDuration(absl::string_view field,
                     const google::protobuf::Duration& duration) {
  constexpr int32_t kNanosMax = 999'999'999;
  if (duration.seconds() < 0 || duration.nanos() < 0) {
    return InvalidArgumentError(absl::StrCat(field, " is ", duration.seconds(),
                                             "s and ", duration.nanos(),
                                             "ns, must not be negative"));
  }
  if (duration.nanos() > kNanosMax) {
    return InvalidArgumentError(absl::StrCat(field, " has ", duration.nanos(),
                                             " nanos, must be at most ",
                                             kNanosMax));
  }
  return OkStatus();
}

void FillDuration(core::Duration duration,
                  google::protobuf::Duration* message) {
  const auto whole = duration_cast<seconds>(duration);
  message->set_seconds(whole.count());
  message->set_nanos(
      static_cast<int32_t>(nanoseconds(duration - whole).count()));
}

void FillMember(const core::MemberSnapshot& member, v1::MemberInfo* info) {
  info->set_rank(member.rank.has_value() ? member.rank->value() : -1);
  info->set_member(member.id.value());
  info->set_incarnation(member.incarnation.value());
  info->set_host(member.registration.host);
  info->set_pid(member.registration.pid);
  info->set_state(ToState(member.state));
  info->set_cause(member.cause);
  info->set_last_progress(member.last_progress);
  info->set_silent_ms(Milliseconds(member.heard_ago));
  info->set_debug_address(member.registration.debug_address);
}

void FillMember(const core::MissingRank& missing, v1::MemberInfo* info) {
  info->set_rank(missing.rank.value());
  info->set_member(missing.member.value());
  info->set_host(missing.host);
  info->set_pid(missing.pid);
  info->set_state(ToState(missing.cause));
  info->set_cause(missing.cause_text);
  info->set_last_progress(missing.last_progress);
  info->set_silent_ms(Milliseconds(missing.last_heard_ago));
}

void FillMember(const core::AbsentRank& absent, v1::MemberInfo* info) {
  info->set_rank(absent.rank.value());
  info->set_member(absent.member.value());
  info->set_host(absent.host);
  info->set_pid(absent.pid);
  info->set_cause(absent.member.value().empty() ? "did not join"
                                                : absent.cause);
}

void FillMember(const core::Event& event, v1::MemberInfo* info) {
  info->set_rank(event.rank.has_value() ? event.rank->value() : -1);
  info->set_member(event.member.value());
  info->set_incarnation(event.incarnation.value());
  info->set_host(event.host);
  info->set_pid(event.pid);
  info->set_state(ToState(event.kind));
  info->set_cause(event.cause);
  info->set_last_progress(event.last_progress);
}

}  // namespace muster::coordinator
