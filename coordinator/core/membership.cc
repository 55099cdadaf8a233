#include "coordinator/core/membership.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/names.h"
#include "coordinator/core/total_memory.h"

namespace muster::coordinator::core {
namespace {

constexpr size_t kRetiredIncarnationsMax = 16;
// A member's progress may always take this much, even if the memory is full.
constexpr int64_t kProgressUncheckedBytes = 2048;
// Active members report progress several times a second or, with a lease of ten
// seconds or more, once in a tenth of it.
constexpr Duration kOldNews = std::chrono::seconds(1);

absl::string_view DepartureVerb(MemberState state) {
  switch (state) {
    case MemberState::kLost:
      return "was lost";
    case MemberState::kFailed:
      return "failed";
    case MemberState::kLeft:
      return "left";
    case MemberState::kAlive:
    case MemberState::kDisconnected:
      break;
  }
  return "is alive";
}

std::string DepartedText(const Member& member) {
  return absl::StrCat("member ", base::Quote(member.id.value()),
                      " (incarnation ", member.incarnation.value(), ") ",
                      DepartureVerb(member.state), ": ",
                      base::Printable(member.cause));
}

Status StaleError(const MemberId& id, Incarnation stale, Incarnation current) {
  return FailedPreconditionError(
      absl::StrCat("stale incarnation ", stale.value(), " of member ",
                   base::Quote(id.value()), ", current is ", current.value()));
}

MemberState StateAfter(EventKind kind) {
  switch (kind) {
    case EventKind::kFailed:
      return MemberState::kFailed;
    case EventKind::kLeft:
      return MemberState::kLeft;
    case EventKind::kLost:
    case EventKind::kReplaced:
    case EventKind::kWaiting:  // no departure
    case EventKind::kGroupFailed:
      break;
  }
  return MemberState::kLost;
}

NoticeKind ToNoticeKind(EventKind kind) {
  switch (kind) {
    case EventKind::kLost:
      return NoticeKind::kMemberLost;
    case EventKind::kFailed:
      return NoticeKind::kMemberFailed;
    case EventKind::kLeft:
      return NoticeKind::kMemberLeft;
    case EventKind::kReplaced:
    case EventKind::kWaiting:
    case EventKind::kGroupFailed:
      break;
  }
  return NoticeKind::kMemberReplaced;
}

Event MakeEvent(const Member& member, EventKind kind, std::string cause,
                Instant now) {
  Event event;
  event.kind = kind;
  event.member = member.id;
  event.incarnation = member.incarnation;
  event.rank = member.rank;
  event.host = member.registration.host;
  event.pid = member.registration.pid;
  event.cause = std::move(cause);
  const Duration age = now - member.progress_at;
  event.last_progress = DescribeProgress(member.progress, age);
  // The member may have come further since.
  if (kind == EventKind::kLost && !member.progress.empty() && age >= kOldNews) {
    absl::StrAppend(&event.last_progress, ", told ", FormatDuration(age),
                    " ago");
  }
  event.generation = member.generation;
  return event;
}

// A cause and progress may be much longer than the rest of a member.
int64_t CountBytes(const Member& member) {
  return kMemberMemory + static_cast<int64_t>(member.cause.size()) +
         CountBytes(member.progress);
}

Status CheckProgress(const GroupProgress& group) {
  const auto negative = [](absl::string_view field, int64_t value,
                           absl::string_view unit = "") {
    return InvalidArgumentError(absl::StrCat("heartbeat: groups.", field,
                                             " is ", value, unit,
                                             ", must not be negative"));
  };
  if (group.last_enqueued < 0) {
    return negative("last_enqueued", group.last_enqueued);
  }
  if (group.last_completed < 0) {
    return negative("last_completed", group.last_completed);
  }
  if (group.current_age < Duration::zero()) {
    return negative(
        "running_for",
        std::chrono::duration_cast<std::chrono::nanoseconds>(group.current_age)
            .count(),
        "ns");
  }
  return OkStatus();
}

}  // namespace

absl::string_view MemberStateName(MemberState state) {
  switch (state) {
    case MemberState::kAlive:
      return "alive";
    case MemberState::kDisconnected:
      return "disconnected";
    case MemberState::kLost:
      return "lost";
    case MemberState::kFailed:
      return "failed";
    case MemberState::kLeft:
      return "left";
  }
  return "unknown";
}

Status DepartedError(const Event& event) {
  if (event.kind == EventKind::kReplaced) {
    return FailedPreconditionError(absl::StrCat(
        "stale incarnation ", event.incarnation.value(), " of member ",
        base::Quote(event.member.value()), ": ", base::Printable(event.cause)));
  }
  return FailedPreconditionError(absl::StrCat(
      "member ", base::Quote(event.member.value()), " (incarnation ",
      event.incarnation.value(), ") ", DepartureVerb(StateAfter(event.kind)),
      ": ", base::Printable(event.cause)));
}

Membership::Membership(const MembershipOptions& options, const Limits* limits,
                       Journal* journal)
    : options_(options), limits_(*limits), journal_(*journal) {}

const Member* Membership::Find(const MemberId& id) const {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : &it->second;
}

Member* Membership::Find(const MemberId& id) {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : &it->second;
}

StatusOr<Member*> Membership::Admit(const Call& call, Instant now,
                                    Outbox& out) {
  Member* member = Find(call.member);
  if (member == nullptr) {
    return FailedPreconditionError(absl::StrCat(
        "member ", base::Quote(call.member.value()), " is not registered"));
  }
  if (member->incarnation != call.incarnation) {
    return StaleError(call.member, call.incarnation, member->incarnation);
  }
  if (!member->live()) {
    return FailedPreconditionError(DepartedText(*member));
  }
  Heard(*member, now, out);
  return member;
}

void Membership::Heard(Member& member, Instant now, Outbox& out) {
  const Duration silence = now - member.heard_at;
  member.heard_at = now;
  if (!member.held_until.has_value()) return;
  Release(member);
  Schedule(member, DueAt(member));
  if (!holding_) return;
  EndHold(std::max(options_.lease, std::min(silence, options_.resend_max)), now,
          out);
}

void Membership::Return(Member& member, Instant now) {
  member.disconnection = Disconnection::kClosed;
  member.state = MemberState::kAlive;
  member.state_since = now;
}

Status Membership::CheckRegistration(const Call& call,
                                     const Registration& registration) const {
  if (call.member.value().empty()) {
    return InvalidArgumentError("register: the member has no name");
  }
  if (call.incarnation == Incarnation()) {
    return InvalidArgumentError(absl::StrCat("register: member ",
                                             base::Quote(call.member.value()),
                                             " has incarnation 0"));
  }
  for (const Offer& offer :
       {Offer{"member", call.member.value()}, Offer{"host", registration.host},
        Offer{"address", registration.debug_address}}) {
    Status status = CheckName(limits_, "register", offer);
    if (!status.ok()) return status;
  }
  const Member* member = Find(call.member);
  if (member == nullptr) return OkStatus();
  if (member->incarnation == call.incarnation) {
    if (member->live()) return OkStatus();
    return FailedPreconditionError(absl::StrCat(
        DepartedText(*member), "; register with a new incarnation"));
  }
  if (std::find(member->retired.begin(), member->retired.end(),
                call.incarnation) != member->retired.end()) {
    return StaleError(call.member, call.incarnation, member->incarnation);
  }
  return OkStatus();
}

StatusOr<Member*> Membership::Register(const Call& call,
                                       Registration registration, Instant now,
                                       std::vector<Event>& departed,
                                       Outbox& out) {
  Status status = CheckRegistration(call, registration);
  if (!status.ok()) return status;
  journal_.Member(call.member);
  Member* member = Find(call.member);
  if (member != nullptr && member->incarnation == call.incarnation) {
    // A reconnection, possibly to the successor of the coordinator that the
    // member knew, which has not seen it disconnect.
    out.Note(NoticeKind::kMemberReconnected,
             absl::StrCat("member=", base::LogValue(member->id.value()),
                          " incarnation=", member->incarnation.value()));
    Return(*member, now);
    Heard(*member, now, out);
    member->registration = std::move(registration);
    return member;
  }
  if (member == nullptr) {
    const int64_t count = static_cast<int64_t>(members_.size()) + 1;
    if (count > limits_.members && !ForgetOldestDeparted()) {
      return CheckLimit("members", limits_.members, count,
                        {"member", call.member.value()});
    }
    status =
        CheckMemory(limits_, kMemberMemory, {"member", call.member.value()});
    if (!status.ok() && !ForgetOldestDeparted()) return status;
    member = &members_.try_emplace(call.member, limits_.memory).first->second;
    member->id = call.member;
  } else {
    if (member->live()) {
      departed.push_back(Depart(
          *member, EventKind::kReplaced,
          absl::StrCat("replaced by incarnation ", call.incarnation.value(),
                       " on ", registration.host, ", pid ", registration.pid),
          now, out));
    }
    schedule_.erase({member->expires_at, member->id});
    std::deque<Incarnation> retired = std::move(member->retired);
    retired.push_back(member->incarnation);
    if (retired.size() > kRetiredIncarnationsMax) retired.pop_front();
    *member = Member(limits_.memory);
    member->id = call.member;
    member->retired = std::move(retired);
  }
  // A registration shows that the coordinator is not cut off.
  if (holding_ && all_silent_) EndHold(options_.lease, now, out);
  member->incarnation = call.incarnation;
  member->registration = std::move(registration);
  member->state_since = now;
  member->heard_at = now;
  member->expires_at = DueAt(*member);
  schedule_.emplace(member->expires_at, member->id);
  ++live_;
  Account(*member);
  out.Note(NoticeKind::kMemberRegistered,
           absl::StrCat("member=", base::LogValue(member->id.value()),
                        " incarnation=", member->incarnation.value(),
                        " host=", base::LogValue(member->registration.host),
                        " pid=", member->registration.pid));
  return member;
}

Status Membership::Heartbeat(Member& member,
                             std::vector<GroupProgress> progress, Instant now) {
  // The member is alive even if its list is refused.
  if (member.state == MemberState::kDisconnected) Return(member, now);
  Status status = CheckLimit("progress_groups", limits_.progress_groups,
                             static_cast<int64_t>(progress.size()),
                             {"member", member.id.value()});
  if (!status.ok()) return status;
  for (const GroupProgress& group : progress) {
    status = CheckProgress(group);
    if (!status.ok()) return status;
  }
  for (GroupProgress& group : progress) {
    group.group = CutText(group.group, limits_.name_bytes);
    group.current = CutText(group.current, limits_.name_bytes);
  }
  const int64_t bytes = CountBytes(progress);
  const int64_t more = bytes - CountBytes(member.progress);
  if (bytes > kProgressUncheckedBytes && !CheckMemory(limits_, more).ok()) {
    KeepLongest(progress);
  }
  member.progress = std::move(progress);
  member.progress_at = now;
  Account(member);
  return OkStatus();
}

void Membership::Leave(Member& member, absl::string_view reason, Instant now,
                       std::vector<Event>& departed, Outbox& out) {
  departed.push_back(Depart(
      member, EventKind::kLeft,
      reason.empty() ? "no reason given" : CutText(reason, limits_.text_bytes),
      now, out));
}

void Membership::Fail(Member& member, FailureReport report, Instant now,
                      std::vector<Event>& departed, Outbox& out) {
  departed.push_back(Depart(member, EventKind::kFailed,
                            report.text.empty()
                                ? "no error text given"
                                : CutText(report.text, limits_.text_bytes),
                            now, out));
  departed.back().verdict = std::move(report.verdict);
  departed.back().culprits = std::move(report.culprits);
  departed.back().blames = std::move(report.blames);
}

bool Membership::HasReported(const Call& call) const {
  const Member* member = Find(call.member);
  return member != nullptr && member->incarnation == call.incarnation &&
         member->state == MemberState::kFailed;
}

Event Membership::Abandoned(const Member& member, Instant now) const {
  return MakeEvent(
      member, EventKind::kLeft,
      absl::StrCat("gave up generation ", member.generation.value(),
                   " to join the next one"),
      now);
}

Event Membership::DepartedEvent(const Member& member, Instant now) const {
  const bool left = member.state == MemberState::kLeft;
  return MakeEvent(member, left ? EventKind::kLeft : EventKind::kLost,
                   member.cause, now);
}

void Membership::Disconnected(const MemberId& id, Incarnation incarnation,
                              Instant now, Outbox& out,
                              Disconnection disconnection) {
  Member* member = Find(id);
  if (member == nullptr || member->incarnation != incarnation) return;
  if (member->state != MemberState::kAlive) return;
  member->disconnection = disconnection;
  member->state = MemberState::kDisconnected;
  member->state_since = now;
  // Others have been heard, so the network works, and the connection was more
  // likely closed by the end of its process.
  if (member->held_until.has_value() && !holding_) {
    member->held_until =
        std::min(*member->held_until, DeadlineAfter(now, options_.lease));
  }
  Schedule(*member, DueAt(*member));
  out.Note(NoticeKind::kMemberDisconnected,
           absl::StrCat("member=", base::LogValue(id.value()),
                        " incarnation=", incarnation.value()));
}

// Makes the member depart. Its record stays, so that its incarnation is fenced.
Event Membership::Depart(Member& member, EventKind kind, std::string cause,
                         Instant now, Outbox& out) {
  Event event = MakeEvent(member, kind, cause, now);
  member.state = StateAfter(kind);
  member.state_since = now;
  member.cause = std::move(cause);
  for (const SequenceNumber sequence : member.replies.Answered()) {
    journal_.Reply(member.id, sequence);
  }
  member.replies = ReplyCache(limits_.memory);
  Account(member);
  journal_.Member(member.id);
  --live_;
  if (member.held_until.has_value()) {
    Release(member);
    // No held member is left to be heard.
    if (held_ == 0) holding_ = false;
  }
  Schedule(member, DueAt(member));

  std::string text =
      absl::StrCat("member=", base::LogValue(event.member.value()),
                   " incarnation=", event.incarnation.value());
  if (event.rank.has_value()) {
    absl::StrAppend(&text, " rank=", event.rank->value(),
                    " generation=", event.generation.value());
  }
  absl::StrAppend(&text, " host=", base::LogValue(event.host),
                  " cause=", TextInNotice(event.cause));
  out.Note(ToNoticeKind(kind), std::move(text));
  return event;
}

void Membership::Schedule(Member& member, Instant at) {
  schedule_.erase({member.expires_at, member.id});
  member.expires_at = at;
  schedule_.emplace(at, member.id);
}

// The time when the member's state changes unless it is heard before.
Instant Membership::DueAt(const Member& member) const {
  const Instant lease_end =
      std::max(DeadlineAfter(member.heard_at, options_.lease),
               member.held_until.value_or(member.heard_at));
  switch (member.state) {
    case MemberState::kAlive:
      return lease_end;
    case MemberState::kDisconnected:
      // The connection of a held member broke together with its network.
      if (member.dismissed() || member.held_until.has_value()) return lease_end;
      return std::min(lease_end, DeadlineAfter(member.state_since,
                                               options_.reconnect_grace));
    case MemberState::kLost:
    case MemberState::kFailed:
    case MemberState::kLeft:
      break;
  }
  return DeadlineAfter(member.state_since, options_.departed_retention);
}

void Membership::ExtendLeases(Instant now, Outbox& out) {
  for (auto& [id, member] : members_) {
    if (!member.live()) continue;
    member.heard_at = now;
    if (member.state == MemberState::kDisconnected) member.state_since = now;
  }
  out.Note(NoticeKind::kLeasesExtended,
           absl::StrCat("members=", live_, " stalled_for=",
                        FormatDuration(now - schedule_.begin()->first)));
}

// Holds the silent members if they are on several hosts. A live member is heard
// every third of its lease, and a dying one closes its connection. So a member
// counts as silent if it was not heard for half a lease, even if its connection
// has just closed.
void Membership::HoldSilent(Instant now, Outbox& out) {
  std::vector<Member*> silent;
  absl::btree_set<absl::string_view> hosts;
  int64_t heard = 0;
  for (auto& [id, member] : members_) {
    // Excludes dismissed members, of which nothing is known after a restart,
    // and members that were held and not heard since.
    if (!member.live() || member.dismissed() || member.held_until.has_value()) {
      continue;
    }
    if (now - member.heard_at <= options_.lease / 2) {
      ++heard;
      continue;
    }
    silent.push_back(&member);
    hosts.insert(member.registration.host);
  }
  if (hosts.size() < 2) return;
  const Duration longest =
      heard == 0 ? LongestHold() : options_.lease * options_.silent_leases_max;
  for (Member* member : silent) {
    member->held_until = DeadlineAfter(member->heard_at, longest);
    Schedule(*member, DueAt(*member));
  }
  held_ += static_cast<int64_t>(silent.size());
  holding_ = true;
  all_silent_ = heard == 0;
  out.Note(
      NoticeKind::kHostsSilent,
      absl::StrCat("hosts=", hosts.size(), " members=", silent.size(),
                   " heard=", heard, " lost_after=", FormatDuration(longest)));
}

// If the network was silent, the other members are heard soon.
void Membership::EndHold(Duration left, Instant now, Outbox& out) {
  holding_ = false;
  int64_t silent = 0;
  for (auto& [id, member] : members_) {
    if (!member.live() || !member.held_until.has_value()) continue;
    member.held_until = std::min(DeadlineAfter(now, left),
                                 DeadlineAfter(member.heard_at, LongestHold()));
    Schedule(member, DueAt(member));
    ++silent;
  }
  out.Note(
      NoticeKind::kHostsHeard,
      absl::StrCat("members=", silent, " have_still=", FormatDuration(left)));
}

void Membership::Release(Member& member) {
  member.held_until.reset();
  --held_;
}

Duration Membership::LongestHold() const {
  return std::max(options_.lease * options_.silent_leases_max,
                  options_.silence_max);
}

void Membership::Expire(Instant now, std::vector<Event>& departed,
                        Outbox& out) {
  if (live_ > 0 && !schedule_.empty() && schedule_.begin()->first < now &&
      now - schedule_.begin()->first > options_.stall_tolerance) {
    ExtendLeases(now, out);
  }
  bool looked = false;
  while (!schedule_.empty() && schedule_.begin()->first <= now) {
    Member& member = members_.at(schedule_.begin()->second);
    // Once per call, because it looks at all members.
    if (DueAt(member) <= now && member.live() && !looked) {
      HoldSilent(now, out);
      looked = true;
    }
    const Instant due = DueAt(member);
    if (due > now) {
      Schedule(member, due);
      continue;
    }
    if (!member.live()) {
      Forget(member);
      continue;
    }
    const bool silent = DeadlineAfter(member.heard_at, options_.lease) <= now;
    std::string cause =
        silent ? absl::StrCat("no heartbeat for ",
                              FormatDuration(now - member.heard_at), " (lease ",
                              FormatDuration(options_.lease), ")")
               : absl::StrCat("connection closed, not restored within ",
                              FormatDuration(options_.reconnect_grace));
    if (member.disconnection == Disconnection::kRelayGone) {
      absl::StrAppend(&cause, ", since the relay of its host went away");
    }
    departed.push_back(
        Depart(member, EventKind::kLost, std::move(cause), now, out));
  }
}

void Membership::Forget(const Member& member) {
  journal_.Member(member.id);
  schedule_.erase({member.expires_at, member.id});
  members_.erase(MemberId(member.id));
}

void Membership::Account(Member& member) {
  member.memory.Set(CountBytes(member));
}

int64_t Membership::CountMemory() const {
  int64_t bytes = 0;
  for (const auto& [id, member] : members_) {
    bytes += CountBytes(member) + member.replies.CountMemory();
  }
  return bytes;
}

// Makes room in a full table. Rare, so a linear search is fine.
bool Membership::ForgetOldestDeparted() {
  const Member* oldest = nullptr;
  for (const auto& [id, member] : members_) {
    if (member.live()) continue;
    if (oldest == nullptr || member.expires_at < oldest->expires_at) {
      oldest = &member;
    }
  }
  if (oldest == nullptr) return false;
  Forget(*oldest);
  return true;
}

std::optional<Instant> Membership::NextDeadline() const {
  if (schedule_.empty()) return std::nullopt;
  return schedule_.begin()->first;
}

void Membership::AssignRank(const MemberId& id, Rank rank,
                            Generation generation) {
  Member* member = Find(id);
  if (member == nullptr) return;
  member->rank = rank;
  member->generation = generation;
  journal_.Member(id);
}

void Membership::ClearRank(const MemberId& id) {
  Member* member = Find(id);
  if (member == nullptr) return;
  member->rank.reset();
  journal_.Member(id);
}

MemberRecord Membership::MakeRecord(const MemberId& id) const {
  const Member* member = Find(id);
  MemberRecord record;
  record.id = id;
  record.erased = member == nullptr;
  if (member == nullptr) return record;
  record.incarnation = member->incarnation;
  record.registration = member->registration;
  // The connection's state does not matter after a restart.
  record.state = member->live() ? MemberState::kAlive : member->state;
  record.cause = member->cause;
  record.rank = member->rank;
  record.generation = member->generation;
  record.retired = member->retired;
  return record;
}

void Membership::Restore(MemberRecord record, Instant now) {
  Member& member =
      members_.try_emplace(record.id, limits_.memory).first->second;
  member.id = record.id;
  member.incarnation = record.incarnation;
  member.registration = std::move(record.registration);
  if (record.state == MemberState::kAlive) {
    member.disconnection = Disconnection::kDismissed;
  }
  member.state = member.dismissed() ? MemberState::kDisconnected : record.state;
  member.state_since = now;
  member.heard_at = now;
  member.progress_at = now;
  member.cause = std::move(record.cause);
  member.rank = record.rank;
  member.generation = record.generation;
  member.retired = std::move(record.retired);
  member.expires_at = DueAt(member);
  schedule_.emplace(member.expires_at, member.id);
  if (member.live()) ++live_;
  Account(member);
}

std::vector<MemberId> Membership::Listeners() const {
  std::vector<MemberId> listeners;
  listeners.reserve(static_cast<size_t>(live_));
  for (const auto& [id, member] : members_) {
    if (member.live() || member.state == MemberState::kFailed) {
      listeners.push_back(id);
    }
  }
  return listeners;
}

Status Membership::CheckInvariants() const {
  int64_t live = 0;
  int64_t held = 0;
  for (const auto& [id, member] : members_) {
    if (member.live()) ++live;
    if (member.held_until.has_value()) ++held;
    if (id != member.id || !schedule_.contains({member.expires_at, id})) {
      return InternalError(absl::StrCat("membership: ", base::Quote(id.value()),
                                        " is not scheduled"));
    }
    if (member.expires_at > DueAt(member)) {
      return InternalError(absl::StrCat("membership: ", base::Quote(id.value()),
                                        " is scheduled too late"));
    }
  }
  if (held != held_ || (holding_ && held == 0)) {
    return InternalError(absl::StrCat("membership: counts ", held_,
                                      " held members, has ", held,
                                      holding_ ? ", and waits for one" : ""));
  }
  if (live != live_ || schedule_.size() != members_.size()) {
    return InternalError(absl::StrCat(
        "membership: counts ", live_, " live members, has ", live, "; ",
        schedule_.size(), " scheduled of ", members_.size()));
  }
  return OkStatus();
}

}  // namespace muster::coordinator::core
