#include "client/groups/error_resolver.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "glog/logging.h"

namespace muster::internal {
namespace {

// The coordinator waits for the reports of others, and for a rank that came
// late or a better explanation again.
constexpr std::chrono::seconds kVerdictTime(6);

// How often to look whether the coordinator is within reach again.
constexpr std::chrono::milliseconds kConnectedAgain(50);

// The event with the verdict may be lost with a connection.
constexpr std::chrono::seconds kReportAgain(1);

absl::string_view Fate(MemberEvent::Kind kind) {
  switch (kind) {
    case MemberEvent::Kind::kLeft:
      return "left";
    case MemberEvent::Kind::kLost:
      return "was lost";
    case MemberEvent::Kind::kFailed:
      return "failed";
    case MemberEvent::Kind::kReplaced:
      return "was replaced by a new process";
    case MemberEvent::Kind::kWaiting:
    case MemberEvent::Kind::kGroupFailed:
      break;
  }
  return "is gone";
}

// Logs the only line about the end of a group.
void LogGroupFailure(const std::string& group, int64_t generation, int rank,
                     const Status& why) {
  const Culprits culprits = ToCulprits(why);
  std::vector<int> shown;
  for (const MemberInfo& member : culprits.members) {
    if (shown.size() < kRanksInTextMax) shown.push_back(member.rank);
  }
  LOG(WARNING) << "group failed: group=" << base::LogValue(group)
               << " generation=" << generation << " rank=" << rank
               << " culprits=" << absl::StrJoin(shown, ",")
               << (shown.size() < culprits.size() ? ",..." : "")
               << " cause=" << base::Quote(why.message());
}

}  // namespace

Status ToError(const MemberEvent& event) {
  return WithCulprits(Status(event.code, base::Printable(event.member.cause)),
                      {event.culprits, event.other_culprits});
}

Status AsVerdict(Status why, std::vector<int> culprits) {
  std::sort(culprits.begin(), culprits.end());
  // For instance "2-5,7".
  std::string text;
  for (size_t i = 0; i < culprits.size();) {
    const int first = culprits[i];
    int last = first;
    while (++i < culprits.size() && culprits[i] <= last + 1) last = culprits[i];
    const std::string range =
        absl::StrCat(text.empty() ? "" : ",", first,
                     last == first ? "" : absl::StrCat("-", last));
    if (text.size() + range.size() > dataplane::kVerdictBytesMax) break;
    text += range;
  }
  dataplane::SetVerdict(why, text);
  return why;
}

Culprits SeatedAt(const std::vector<Seat>& seats, const std::vector<int>& ranks,
                  const std::string& cause) {
  Culprits culprits;
  for (const Seat& seat : seats) {
    if (!std::binary_search(ranks.begin(), ranks.end(), seat.rank)) continue;
    if (culprits.members.size() < kRanksInTextMax) {
      culprits.members.push_back({.rank = seat.rank,
                                  .member = seat.member,
                                  .host = seat.host,
                                  .pid = seat.pid,
                                  .cause = cause});
    } else {
      culprits.others.push_back({.first = seat.rank, .count = 1});
    }
  }
  return culprits;
}

std::string DescribeMember(const MemberInfo& member, bool in_world) {
  std::string text =
      absl::StrCat(in_world ? "rank " : "global rank ", member.rank);
  if (!member.host.empty()) {
    absl::StrAppend(&text, " (", member.host, ", pid ", member.pid, ")");
  }
  return text;
}

bool ErrorResolver::Gone::At(const std::vector<bool>& ranks, int rank) {
  return rank >= 0 && static_cast<size_t>(rank) < ranks.size() &&
         ranks[static_cast<size_t>(rank)];
}

void ErrorResolver::Gone::Mark(std::vector<bool>& ranks, int rank) {
  const size_t place = static_cast<size_t>(rank);
  if (rank < 0) return;
  if (place >= ranks.size()) ranks.resize(place + 1);
  ranks[place] = true;
}

void ErrorResolver::Gone::Add(const MemberEvent& event) {
  Mark(ranks, event.member.rank);
  if (event.kind != MemberEvent::Kind::kLeft) return;
  Mark(left, event.member.rank);
  described.emplace(event.member.rank, event.member);
  for (const MemberInfo& member : event.left_members) {
    described.emplace(member.rank, member);
  }
  for (const RankRange& range : event.left_ranks) {
    for (int rank = range.first; rank < range.first + range.count; ++rank) {
      Mark(ranks, rank);
      Mark(left, rank);
    }
  }
}

ErrorResolver::Completion ErrorResolver::OnEvent(const MemberEvent& event) {
  // No member has gone.
  if (event.kind == MemberEvent::Kind::kWaiting) return Completion();
  MutexLock lock(mutex_);
  if (event.kind != MemberEvent::Kind::kGroupFailed) {
    gone_[event.generation].Add(event);
  }
  if (event.kind != MemberEvent::Kind::kLeft || event.generation_ended) {
    events_.push_back(event);
  }
  return ConcludeAndEnd();
}

ErrorResolver::Completion ErrorResolver::OnSessionOver(const Status& why) {
  MutexLock lock(mutex_);
  session_over_ = why;
  const bool lasted = final_.ok();
  Completion ending = ConcludeAndEnd();
  if (IsWorld() && lasted == final_.ok()) {
    LOG(WARNING) << "session over: cause=" << base::Quote(why.message());
  }
  return ending;
}

void ErrorResolver::Form(Group group) {
  const Completion after_the_lock = [&] {
    MutexLock lock(mutex_);
    group_ = std::move(group);
    return EndForming();
  }();
}

ErrorResolver::Completion ErrorResolver::EndForming() {
  Status why = group_.abort ? WhatIsKnown(group_.generation) : OkStatus();
  if (why.ok()) return Completion([this] { changed_.NotifyAll(); });
  const bool in_peace = why == FindDeparture(group_.generation);
  why = ForGroup(std::move(why));
  if (in_peace) {
    const std::vector<int> culprits = dataplane::CulpritRanks(why);
    why = CancelledError(why.message());
    dataplane::SetCulpritRanks(why, culprits);
  }
  return Completion([this, abort = std::exchange(group_.abort, nullptr), why] {
    changed_.NotifyAll();
    abort(why);
  });
}

void ErrorResolver::Begin(Group group) {
  const Completion after_the_lock = [&] {
    MutexLock lock(mutex_);
    group_ = std::move(group);
    begun_ = true;
    concluded_ = 0;
    return ConcludeAndEnd();
  }();
}

ErrorResolver::Completion ErrorResolver::ConcludeAndEnd() {
  if (!begun_) return EndForming();
  std::function<void(const Status&)> abort;
  if (Conclude()) abort = group_.abort;
  return Completion([this, abort = std::move(abort), why = ForGroup(final_)] {
    changed_.NotifyAll();
    if (abort) abort(why);
  });
}

void ErrorResolver::End() {
  MutexLock lock(mutex_);
  group_.current = nullptr;
  group_.abort = nullptr;
  group_.report = nullptr;
  group_.connected = nullptr;
  changed_.NotifyAll();
}

bool ErrorResolver::Includes(int rank) const {
  return IsWorld() ||
         std::binary_search(options_.ranks.begin(), options_.ranks.end(), rank);
}

// A resolver without a name serves a call of the whole world (Groups::Meet),
// which ends with the default group.
bool ErrorResolver::IsOwn(const MemberEvent& event) const {
  return event.kind == MemberEvent::Kind::kGroupFailed &&
         event.group == (IsWorld() ? "" : group_.name) &&
         event.group_instance == group_.instance;
}

bool ErrorResolver::Concerns(const MemberEvent& event) const {
  if (event.kind == MemberEvent::Kind::kGroupFailed) {
    return IsOwn(event) && event.code != StatusCode::kOk;
  }
  if (event.code == StatusCode::kOk) return Includes(event.member.rank);
  // A report: the reporter itself is not the culprit.
  const Culprits culprits{event.culprits, event.other_culprits};
  return IsWorld() || event.unknown_culprits > 0 ||
         std::any_of(options_.ranks.begin(), options_.ranks.end(),
                     [&](int rank) { return culprits.Include(rank); });
}

int ErrorResolver::GlobalRank(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(group_.seats.size())) return -1;
  return group_.seats[static_cast<size_t>(rank)].rank;
}

Status ErrorResolver::ForGroup(Status why) const {
  const Culprits culprits = ToCulprits(why);
  std::vector<int> ranks;
  for (size_t i = 0; i < group_.seats.size() && !culprits.empty(); ++i) {
    if (culprits.Include(group_.seats[i].rank)) {
      ranks.push_back(static_cast<int>(i));
    }
  }
  if (!ranks.empty()) dataplane::SetCulpritRanks(why, ranks);
  return why;
}

bool ErrorResolver::Conclude() {
  if (!begun_ || !final_.ok()) return false;
  while (concluded_ < events_.size()) {
    const MemberEvent& event = events_[concluded_++];
    if (event.generation != group_.generation || !Concerns(event) ||
        (IsWorld() && !event.generation_ended)) {
      continue;
    }
    Finish(Verdict(event, Label()));
    return true;
  }
  // The loss of a coordinator that restarted or is out of reach does not end
  // the group. It does if the coordinator ended with rank 0, has declared this
  // member lost, or refuses it: no other process would watch this rank.
  const bool with_rank_0 = options_.embedded && IsUnavailable(session_over_);
  if (with_rank_0 ? Includes(0) && !HasLeft(0)
                  : IsFailedPrecondition(session_over_) ||
                        IsUnauthenticated(session_over_) ||
                        IsPermissionDenied(session_over_)) {
    Finish(CoordinatorGone(session_over_));
    return true;
  }
  return false;
}

void ErrorResolver::Finish(Status why) {
  final_ = std::move(why);
  // Only the code before this needs the payload.
  final_.ErasePayload(dataplane::kFailedCallUrl);
  LogGroupFailure(group_.name, group_.generation, group_.rank, final_);
}

std::string ErrorResolver::Label() const {
  if (!failed_label_.empty()) return failed_label_;
  const std::string current = group_.current ? group_.current() : "";
  return current.empty()
             ? GroupLabel()
             : absl::StrCat(current, " on group ", base::Quote(group_.name));
}

std::string ErrorResolver::MakeLabel(const Status& symptom) const {
  const auto call = dataplane::FindFailedCall(symptom);
  if (call.has_value()) return dataplane::MakeLabel(*call, group_.name);
  // A decision is about the group, not about the running call.
  return dataplane::Verdict(symptom).has_value() ? GroupLabel() : Label();
}

std::string ErrorResolver::GroupLabel() const {
  return absl::StrCat("group ", base::Quote(group_.name));
}

Status ErrorResolver::Verdict(const MemberEvent& event,
                              const std::string& label) const {
  if (event.code != StatusCode::kOk) return ToError(event);
  std::string text =
      absl::StrCat(label, ": ", DescribeMember(event.member, IsWorld()), " ",
                   Fate(event.kind));
  if (!event.member.cause.empty()) {
    absl::StrAppend(&text, ": ", base::Printable(event.member.cause));
  }
  absl::StrAppend(&text, "; last progress: ",
                  event.member.last_progress.empty()
                      ? "none reported"
                      : event.member.last_progress);
  // The member is gone, or it reported that it cannot go on.
  const bool reported = event.kind == MemberEvent::Kind::kFailed;
  return WithCulprits(reported ? AbortedError(text) : UnavailableError(text),
                      {{event.member}});
}

Status ErrorResolver::WithSeats(const Status& symptom,
                                const std::vector<int>& culprits,
                                Reader reader) const {
  const Culprits seated = SeatedAt(group_.seats, culprits, symptom.message());
  std::string text(symptom.message());
  const absl::string_view whose = IsWorld() ? "rank " : "global rank ";
  for (const MemberInfo& member : seated.members) {
    absl::StrAppend(&text, "; ", whose, member.rank, " is ");
    if (reader == Reader::kThisRank && member.rank == group_.rank) {
      absl::StrAppend(&text, "this one");
    } else {
      absl::StrAppend(&text, "pid ", member.pid, " on ", member.host);
    }
  }
  Status error = WithCulprits(Status(symptom.code(), text), seated);
  if (const auto call = dataplane::FindFailedCall(symptom)) {
    dataplane::SetFailedCall(error, *call);
  }
  return error;
}

// The error of a rank to which the coordinator gives no verdict.
Status ErrorResolver::Alone(const Status& symptom,
                            const std::vector<int>& culprits,
                            const std::string& why_alone) const {
  if (!group_.report) return WithSeats(symptom, culprits, Reader::kThisRank);
  Status own(symptom.code(),
             absl::StrCat(symptom.message(), "; the coordinator ", why_alone));
  return WithSeats(own, culprits, Reader::kThisRank);
}

Status ErrorResolver::Decision(const Status& verdict) const {
  const std::string text = dataplane::Verdict(verdict).value_or("");
  std::vector<int> ranks;
  for (const absl::string_view range : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    int first = -1;
    int last = -1;
    if (!absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last)) {
      continue;
    }
    for (const Seat& seat : group_.seats) {
      if (seat.rank >= first && seat.rank <= last) ranks.push_back(seat.rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return WithCulprits(Status(verdict.code(), verdict.message()),
                      SeatedAt(group_.seats, ranks, ""));
}

Status ErrorResolver::CoordinatorGone(const Status& why) const {
  if (options_.embedded && IsUnavailable(why)) {
    // Uses the text of the usual case, the same on all ranks; each rank has
    // lost the coordinator in another way.
    MemberEvent event;
    event.kind = MemberEvent::Kind::kLost;
    event.member = {.rank = 0,
                    .cause =
                        "connection to the coordinator that it served "
                        "lost and not restored",
                    .last_progress = "not known, that coordinator had it"};
    for (const Seat& seat : group_.seats) {
      if (seat.rank != 0) continue;
      event.member.member = seat.member;
      event.member.host = seat.host;
      event.member.pid = seat.pid;
    }
    return Verdict(event, Label());
  }
  Status gone(why.code(), absl::StrCat(Label(), ": ", why.message()));
  // The coordinator has declared this member lost.
  if (IsFailedPrecondition(why)) {
    return WithSeats(gone, {group_.rank}, Reader::kThisRank);
  }
  return gone;
}

bool ErrorResolver::HasLeft(int rank) const {
  const auto gone = gone_.find(group_.generation);
  return gone != gone_.end() && gone->second.HasLeft(rank);
}

// If many members left together, the coordinator describes only a few.
MemberInfo ErrorResolver::WhoLeft(int64_t generation, int rank) const {
  const Gone& gone = gone_.at(generation);
  const auto described = gone.described.find(rank);
  if (described != gone.described.end()) return described->second;
  MemberInfo member{.rank = rank, .last_progress = "not told"};
  for (const Seat& seat : group_.seats) {
    if (seat.rank != rank) continue;
    member.member = seat.member;
    member.host = seat.host;
    member.pid = seat.pid;
  }
  return member;
}

Status ErrorResolver::Known(int64_t generation) const {
  MutexLock lock(mutex_);
  return WhatIsKnown(generation);
}

Status ErrorResolver::FindTrouble(int64_t generation) const {
  MutexLock lock(mutex_);
  for (const MemberEvent& event : events_) {
    if (event.generation == generation && IsOwn(event)) {
      return AbortedError(base::Printable(event.member.cause));
    }
  }
  return OkStatus();
}

Status ErrorResolver::AwaitKnown(int64_t generation) {
  const Instant until = Clock::now() + options_.verdict_timeout;
  MutexLock lock(mutex_);
  for (;;) {
    Status known = WhatIsKnown(generation);
    if (!known.ok() || Clock::now() >= until) return known;
    changed_.WaitUntil(mutex_, until);
  }
}

Status ErrorResolver::WhatIsKnown(int64_t generation) const {
  if (begun_) return final_;
  for (const MemberEvent& event : events_) {
    if (event.generation == generation && Concerns(event)) {
      return Verdict(event, "while the group formed");
    }
  }
  Status departure = FindDeparture(generation);
  return departure.ok() ? session_over_ : departure;
}

Status ErrorResolver::FindDeparture(int64_t generation) const {
  const auto gone = gone_.find(generation);
  if (gone == gone_.end()) return OkStatus();
  const int end = static_cast<int>(gone->second.left.size());
  for (int rank = 0; rank < end; ++rank) {
    if (!gone->second.HasLeft(rank) || !Includes(rank)) continue;
    MemberEvent event;
    event.kind = MemberEvent::Kind::kLeft;
    event.member = WhoLeft(generation, rank);
    return Verdict(event, "while the group formed");
  }
  return OkStatus();
}

std::string ErrorResolver::AwaitVerdict(Symptom symptom,
                                        const std::vector<int>& culprits) {
  const Instant begun = Clock::now();
  Instant until = begun + options_.verdict_timeout;
  // If the coordinator is out of reach, its own loss is the likely verdict. Not
  // if this rank is the culprit.
  if (options_.embedded && group_.report &&
      !std::binary_search(culprits.begin(), culprits.end(), group_.rank)) {
    until += options_.coordinator_loss;
  }
  Instant report_at = begun;
  bool reached = false;
  while (final_.ok() && session_over_.ok()) {
    const bool is_last = Clock::now() >= until;
    const auto report = group_.report;
    const bool connected =
        report && (group_.connected == nullptr || group_.connected());
    // Needs no confirmation from a coordinator that is out of reach.
    if (!connected && !reached && symptom.is_decision) break;
    if (reached && !report) break;  // End
    if (connected && Clock::now() >= report_at) {
      symptom.waited = std::chrono::duration_cast<std::chrono::milliseconds>(
          Clock::now() - begun);
      mutex_.Unlock();
      const Answer answer = report(symptom);
      mutex_.Lock();
      if (answer.verdict.has_value() && final_.ok()) {
        Finish(ToError(*answer.verdict));
      }
      if (!answer.refusal.ok()) {
        return absl::StrCat("refuses to say who is to blame: ",
                            answer.refusal.message());
      }
      reached = reached || answer.reached;
      if (reached) until = begun + options_.verdict_timeout + kVerdictTime;
      // Once more at the end.
      report_at = std::min(until, Clock::now() + kReportAgain);
      if (!final_.ok()) break;
    }
    if (is_last && Clock::now() >= until) break;
    const Instant again = Clock::now() + kConnectedAgain;
    changed_.WaitUntil(mutex_, std::min(until, std::max(report_at, again)));
  }
  return reached ? "did not say who is to blame"
                 : "cannot be asked who is to blame";
}

Status ErrorResolver::Decide(const Status& symptom) {
  MutexLock lock(mutex_);
  while (deciding_) changed_.Wait(mutex_);
  if (!final_.ok()) return final_;
  deciding_ = true;
  std::vector<int> culprits;
  for (const int rank : dataplane::CulpritRanks(symptom)) {
    if (const int global = GlobalRank(rank); global >= 0) {
      culprits.push_back(global);
    }
  }
  std::sort(culprits.begin(), culprits.end());
  const bool is_decision = dataplane::Verdict(symptom).has_value();
  failed_label_ = MakeLabel(symptom);
  const std::string why_alone = AwaitVerdict(
      {.error = is_decision ? Decision(symptom)
                            : WithSeats(symptom, culprits, Reader::kOthers),
       .call = failed_label_,
       .is_decision = is_decision,
       .wait = options_.verdict_timeout},
      culprits);
  if (final_.ok() && is_decision) Finish(Decision(symptom));
  for (const int culprit : culprits) {
    if (!final_.ok() || !HasLeft(culprit)) continue;
    MemberEvent event;
    event.kind = MemberEvent::Kind::kLeft;
    event.member = WhoLeft(group_.generation, culprit);
    Finish(Verdict(event, failed_label_));
  }
  if (final_.ok()) Finish(Alone(symptom, culprits, why_alone));
  deciding_ = false;
  changed_.NotifyAll();
  return final_;
}

bool ErrorResolver::AwaitFinal(Instant until) {
  MutexLock lock(mutex_);
  while (final_.ok() && Clock::now() < until) {
    changed_.WaitUntil(mutex_, until);
  }
  return !final_.ok();
}

void ErrorResolver::AwaitOthersGone(std::chrono::milliseconds timeout) {
  const Instant until = Clock::now() + timeout;
  MutexLock lock(mutex_);
  const Gone& gone = gone_[group_.generation];
  // All seats before this one are gone. No member comes back.
  size_t seat = 0;
  while (session_over_.ok() && Clock::now() < until) {
    const Culprits culprits = ToCulprits(final_);
    while (seat < group_.seats.size()) {
      const int rank = group_.seats[seat].rank;
      if (rank != group_.rank && !gone.Has(rank) && !culprits.Include(rank)) {
        break;
      }
      ++seat;
    }
    if (seat == group_.seats.size()) return;
    changed_.WaitUntil(mutex_, until);
  }
}

}  // namespace muster::internal
