#include "client/tools/diagnose/diagnosis_rules.h"

#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/tools/diagnose/tool_text.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;

std::string StateName(v1::MemberState state) {
  switch (state) {
    case v1::MEMBER_STATE_LEFT:
      return "left";
    case v1::MEMBER_STATE_FAILED:
      return "failed";
    case v1::MEMBER_STATE_REPLACED:
      return "was replaced";
    default:
      return "was lost";
  }
}

// Returns the number of collectives that the rank had enqueued then.
std::optional<int64_t> EnqueuedBefore(const v1::GetJobResponse* earlier,
                                      const std::string& group, int rank) {
  if (earlier == nullptr) return std::nullopt;
  for (const RankProgress& place : FindRankProgress(*earlier, group)) {
    if (place.rank == rank && place.told()) return place.enqueued();
  }
  return std::nullopt;
}

// Returns ", in all_reduce #42 ..." from the last report, which may be
// outdated.
std::string WasIn(const RankProgress& place) {
  if (place.in_call())
    return absl::StrCat(", in ", base::Printable(place.call()));
  if (place.completed() == 0) return "";
  return absl::StrCat(", after #", place.completed());
}

// Describes the last completed collective: in the group, or, if there is none,
// in another one.
std::string Last(const RankProgress& place) {
  if (place.completed() > 0) {
    return absl::StrCat("; its last, #", place.completed(), ", is done");
  }
  for (const v1::GroupProgress& other : place.progress->groups()) {
    if (other.last_completed() == 0) continue;
    return absl::StrCat("; its last in group ", base::Quote(other.group()),
                        ", #", other.last_completed(), ", is done");
  }
  return "; it has completed no collective yet";
}

}  // namespace

Culprit ToCulprit(const v1::MemberInfo& member) {
  Culprit culprit;
  culprit.rank = member.rank();
  culprit.host = member.host();
  culprit.pid = member.pid();
  culprit.debug_address = member.debug_address();
  return culprit;
}

std::string GoneText(const v1::MemberInfo& member) {
  return absl::StrCat("is gone: it ", StateName(member.state()), ": ",
                      base::Printable(member.cause()));
}

Culprit DiagnosisRules::Blame(const RankProgress& place,
                              const Awaited& awaited) const {
  Culprit culprit = ToCulprit(*place.member);
  std::tie(culprit.state, culprit.what) = State(place, awaited);
  return culprit;
}

bool DiagnosisRules::IsIll(const RankProgress& place) const {
  if (IsGone(*place.member) || IsSilent(place)) return true;
  const auto answer = answers_.find(place.rank);
  if (answer != answers_.end()) return answer->second != Answer::kAnswers;
  // If it answers, it is about to reconnect.
  return place.member->state() == v1::MEMBER_STATE_DISCONNECTED;
}

bool DiagnosisRules::IsSilent(const RankProgress& place) const {
  return milliseconds(place.member->silent_ms()) > silent_after_;
}

bool DiagnosisRules::IsSure(const RankProgress& place) {
  return place.told() && !place.stale && !IsGone(*place.member);
}

DiagnosisRules::Words DiagnosisRules::State(const RankProgress& place,
                                            const Awaited& awaited) const {
  if (IsGone(*place.member)) return {"dead", GoneText(*place.member)};
  if (IsIll(place)) return Illness(place);
  if (!place.told()) {
    return {"unknown",
            "has told the coordinator of no group: it is in none yet, or the "
            "coordinator was restarted a moment ago"};
  }
  if (place.stale) {
    return {"unknown", absl::StrCat("has told nothing new for ",
                                    SecondsText(place.age), WasIn(place))};
  }
  if (awaited.sequence == 0 || place.enqueued() < awaited.sequence) {
    return Elsewhere(place, awaited);
  }
  return {"in_collective",
          absl::StrCat("is still in it, for ", SecondsText(place.running_for()),
                       ", while others have completed it")};
}

// Describes a rank that has not come to the awaited call.
DiagnosisRules::Words DiagnosisRules::Elsewhere(const RankProgress& place,
                                                const Awaited& awaited) const {
  const auto before = EnqueuedBefore(earlier_, awaited.group, place.rank);
  if (before.has_value() && *before < place.enqueued()) {
    return {"slow",
            absl::StrCat("is slow: it has come from #", *before, " to #",
                         place.enqueued(), " since the first look")};
  }
  if (place.in_call()) {
    return {place.connecting()      ? "connecting"
            : place.in_collective() ? "in_collective"
                                    : "point_to_point",
            absl::StrCat(awaited.omission, ": it is in ",
                         base::Printable(place.call()), " for ",
                         SecondsText(place.running_for()))};
  }
  const Waits::Wait ranks = waits_.ForRanks(place.rank);
  if (!ranks.state.empty()) {
    return {ranks.state, absl::StrCat(awaited.omission, ": ", ranks.what)};
  }
  for (const v1::GroupProgress& other : place.progress->groups()) {
    if (other.group() == awaited.group || other.current().empty()) continue;
    return {"other_group",
            absl::StrCat(awaited.omission, ": it is in ",
                         base::Printable(other.current()), " on group ",
                         base::Quote(other.group()), " for ",
                         SecondsText(Ms(other.running_for()) + place.age))};
  }
  const Waits::Wait key = waits_.ForKey(place.rank);
  if (!key.state.empty()) {
    return {key.state, absl::StrCat(awaited.omission, ": ", key.what)};
  }
  return {"user_code", absl::StrCat("is in code of its own: it ",
                                    awaited.omission, Last(place))};
}

DiagnosisRules::Words DiagnosisRules::Illness(const RankProgress& place) const {
  const v1::MemberInfo& member = *place.member;
  const std::string heard = absl::StrCat(
      "last heard of ", SecondsText(milliseconds(member.silent_ms())), " ago",
      place.told() ? WasIn(place)
                   : ", or not since the coordinator was started then");
  const std::string at = base::Printable(member.debug_address());
  const auto answer = answers_.find(place.rank);
  if (answer == answers_.end()) {
    return {
        "silent",
        absl::StrCat("is silent: ", heard,
                     at.empty() ? "; it serves no HTTP that would tell why"
                                : absl::StrCat("; it cannot be asked why at ",
                                               at, " from here"))};
  }
  switch (answer->second) {
    case Answer::kRefused:
      return {"dead",
              absl::StrCat("is dead: nobody listens at ", at, "; ", heard)};
    case Answer::kSilent:
      return {"stopped",
              absl::StrCat("is stopped (SIGSTOP, a debugger, or its machine "
                           "hangs): its process takes a connection at ",
                           at, " and does not answer; ", heard)};
    case Answer::kUnreachable:
      return {"cut_off",
              absl::StrCat("is cut off: ", at, " cannot be reached; ", heard)};
    case Answer::kAnswers:
      break;
  }
  return {"cut_off",
          absl::StrCat("answers at ", at,
                       " but does not reach the coordinator; ", heard)};
}

}  // namespace muster::tools
