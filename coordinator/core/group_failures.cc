#include "coordinator/core/group_failures.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/fingerprint.h"
#include "base/text.h"
#include "coordinator/core/names.h"
#include "coordinator/core/progress.h"

namespace muster::coordinator::core {
namespace {

constexpr Duration kTimeoutWait = std::chrono::seconds(2);
constexpr Duration kMismatchWait = std::chrono::seconds(1);
constexpr Duration kSymptomWaitMax = std::chrono::hours(1);
// How long the timeout of a late rank waits for the report of another one.
constexpr Duration kLateWait = std::chrono::seconds(3);

constexpr int64_t kFailureBytes = 256;
constexpr int64_t kReportBytes = 256;

// A longer fingerprint is not kept.
constexpr size_t kFingerprintBytesMax = 64 << 10;
// How many culprits of a report are kept, to explain it by having left, or to
// end their groups.
constexpr size_t kSuspectsMax = 1024;

bool IsWorld(const GroupFailureReport& report) { return report.group.empty(); }

Duration FindWait(const GroupFailureReport& report) {
  switch (report.kind) {
    case GroupFailureKind::kSymptom:
      return std::clamp(report.wait, Duration::zero(), kSymptomWaitMax);
    case GroupFailureKind::kTimeout:
      return report.late ? kLateWait : kTimeoutWait;
    case GroupFailureKind::kMismatch:
      return kMismatchWait;
    case GroupFailureKind::kDecision:
      break;
  }
  return Duration::zero();
}

// A late rank's timeout weighs less than a symptom.
int Weight(const GroupFailureReport& report) {
  const bool is_late = report.kind == GroupFailureKind::kTimeout && report.late;
  return is_late ? -1 : static_cast<int>(report.kind);
}

// Whether `a` counts before `b`, which came earlier. A rank that waits less for
// an explanation is surer of its own.
bool IsBetter(const GroupFailureReport& a, const GroupFailureReport& b) {
  if (Weight(a) != Weight(b)) return Weight(a) > Weight(b);
  return a.kind == GroupFailureKind::kSymptom ? a.wait < b.wait
                                              : a.overtime < b.overtime;
}

int64_t CountBytes(const FailureReport& error) {
  size_t bytes = error.text.size();
  error.verdict.ForEachPayload(
      [&](const std::string& name, const std::string& value) {
        bytes += name.size() + value.size();
      });
  return static_cast<int64_t>(bytes) +
         (error.culprits == nullptr ? 0 : CountBytes(*error.culprits));
}

int64_t CountBytes(const GroupFailureReport& report) {
  // A culprit is a suspect, too.
  return kReportBytes + CountBytes(report.error) +
         static_cast<int64_t>(2 * report.culprits.size() * sizeof(Rank) +
                              report.call.size() + report.fingerprint.size());
}

bool Contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

// Whether the event ends the group. The clients have the same rule, and also
// end each group if the event leaves culprits out.
bool EndsGroup(const Event& event, const std::vector<Rank>& ranks,
               bool is_world) {
  if (is_world) return event.generation_over;
  if (event.verdict.ok()) {
    return Contains(ranks, *event.rank) &&
           (event.kind != EventKind::kLeft || event.generation_over);
  }
  // It blames others.
  const auto is_in = [&](Rank rank) { return Contains(ranks, rank); };
  if (event.culprits == nullptr) {
    return std::any_of(event.blames.begin(), event.blames.end(), is_in);
  }
  const auto& missing = event.culprits->missing;
  bool ends =
      std::any_of(missing.begin(), missing.end(),
                  [&](const MissingRank& who) { return is_in(who.rank); });
  ForEachRank(event.culprits->others, [&](Rank rank) { ends |= is_in(rank); });
  return ends;
}

Event MakeEvent(GroupFailureReply what) {
  Event event;
  event.kind = EventKind::kGroupFailed;
  event.group_failure = std::move(what);
  return event;
}

// `rank 2 (trainer-2, pid 7)`.
std::string RankText(Rank rank, const Seat& seat, bool in_world) {
  return absl::StrCat(in_world ? "rank " : "global rank ", rank.value(), " (",
                      seat.host, ", pid ", seat.pid, ")");
}

}  // namespace

GroupFailureTable::GroupFailureTable(const Limits* limits,
                                     const Membership* membership,
                                     const GroupTable* groups, Journal* journal)
    : limits_(*limits),
      membership_(*membership),
      groups_(*groups),
      journal_(*journal) {}

void GroupFailureTable::Reset(FormationReply formation) {
  while (!failures_.empty()) Forget(failures_.begin());
  formation_ = std::move(formation);
  world_.clear();
  for (size_t i = 0; formation_ && i < formation_->world.size(); ++i) {
    world_.emplace_back(static_cast<int32_t>(i));
  }
  departed_.clear();
  world_verdict_.reset();
}

void GroupFailureTable::Forget(Failures::iterator failure) {
  const auto& [key, of] = *failure;
  if (of.verdict == nullptr) {
    deadlines_.erase({of.deadline, key});
  } else {
    journal_.GroupFailure(key.first, key.second);
  }
  oldest_.erase(of.number);
  bytes_ -= of.bytes;
  failures_.erase(failure);
}

int64_t GroupFailureTable::FailureBytes(const Key& key,
                                        const Failure& failure) {
  int64_t bytes = kFailureBytes +
                  static_cast<int64_t>(key.first.size() + key.second.size() +
                                       failure.ranks.size() * sizeof(Rank));
  for (const auto& [rank, report] : failure.reports) {
    bytes += CountBytes(report);
  }
  if (failure.verdict != nullptr) {
    bytes += CountBytes(failure.verdict->error);
  }
  return bytes;
}

void GroupFailureTable::Count(Failure& failure, int64_t bytes) {
  failure.bytes += bytes;
  bytes_ += bytes;
}

const Seat& GroupFailureTable::FindSeat(Rank rank) const {
  return formation_->world[static_cast<size_t>(rank.value())];
}

// Null if the rank's process is forgotten or was replaced.
const Member* GroupFailureTable::FindMember(Rank rank) const {
  const Seat& seat = FindSeat(rank);
  const Member* const member = membership_.Find(seat.member);
  return member != nullptr && member->incarnation == seat.incarnation ? member
                                                                      : nullptr;
}

bool GroupFailureTable::HasLeft(Rank rank) const {
  const auto found = departed_.find(rank);
  return found != departed_.end() && found->second.kind == EventKind::kLeft;
}

StatusOr<const std::vector<Rank>*> GroupFailureTable::FindRanks(
    const GroupFailureReport& report, Rank caller) const {
  if (IsWorld(report)) return &world_;
  const std::vector<Rank>* const registered = groups_.FindRanks(report.group);
  if (registered == nullptr || !Contains(*registered, caller)) {
    return InvalidArgumentError(
        absl::StrCat("failure of group ", base::Quote(report.group), ": rank ",
                     caller.value(), " is not registered in it"));
  }
  return registered;
}

// The event, if there is one, that has ended the group.
const Event* GroupFailureTable::FindEnd(const std::vector<Rank>& ranks,
                                        bool is_world) const {
  for (const auto& [rank, event] : departed_) {
    if (EndsGroup(event, ranks, is_world)) return &event;
  }
  return nullptr;
}

GroupFailureTable::Failures::iterator GroupFailureTable::Open(
    const Key& key, std::vector<Rank> ranks) {
  const auto opened = failures_.emplace(key, Failure()).first;
  Failure& failure = opened->second;
  failure.ranks = std::move(ranks);
  failure.number = ++failed_;
  oldest_.emplace(failure.number, key);
  Count(failure, FailureBytes(key, failure));
  return opened;
}

// Notes the first report of the rank, or one that weighs more.
void GroupFailureTable::Add(Failure& failure, Rank rank,
                            GroupFailureReport report, Instant now) {
  const auto known = failure.reports.find(rank);
  if (known != failure.reports.end()) {
    if (Weight(report) <= Weight(known->second)) return;
    Count(failure, -CountBytes(known->second));
  }
  if (report.fingerprint.size() > kFingerprintBytesMax ||
      failure.bytes + static_cast<int64_t>(report.fingerprint.size()) >
          limits_.group_failure_bytes) {
    report.fingerprint.clear();
  }
  if (report.culprits.size() > kSuspectsMax) {
    report.culprits.resize(kSuspectsMax);
  }
  for (const Rank culprit : report.culprits) {
    failure.suspects.insert(culprit);
    if (HasLeft(culprit)) failure.left = culprit;
  }
  report.call = CutText(report.call, limits_.name_bytes);
  report.error.text = CutText(report.error.text, limits_.text_bytes);
  GroupFailureReport* const best =
      failure.reports.empty() ? nullptr : &failure.reports.at(failure.best);
  if (best != nullptr && !IsBetter(report, *best)) {
    report.error = FailureReport();
  } else {
    // A better report of the same weight does not prolong the wait.
    const Instant due = now + FindWait(report);
    failure.deadline = best != nullptr && Weight(*best) == Weight(report)
                           ? std::min(failure.deadline, due)
                           : due;
    if (best != nullptr && failure.best != rank) {
      Count(failure, -CountBytes(best->error));
      best->error = FailureReport();
    }
    failure.best = rank;
  }
  Count(failure, CountBytes(report));
  failure.reports.insert_or_assign(rank, std::move(report));
}

// Whether each rank of the group that may still report has.
bool GroupFailureTable::AllReported(Failure& failure) const {
  for (; failure.past < failure.ranks.size(); ++failure.past) {
    const Rank rank = failure.ranks[failure.past];
    if (failure.reports.contains(rank)) continue;
    const Member* const member = FindMember(rank);
    // A member that has failed may still report other groups.
    if (member != nullptr &&
        (member->live() || member->state == MemberState::kFailed)) {
      return false;
    }
  }
  return true;
}

void GroupFailureTable::Report(const Call& call, GroupFailureReport report,
                               Instant now, Outbox& out) {
  const StatusOr<Rank> rank = groups_.FindRank(call, report.generation);
  if (!rank.ok()) return out.Fail(call.waiter, rank.status());
  const StatusOr<const std::vector<Rank>*> ranks = FindRanks(report, *rank);
  if (!ranks.ok()) return out.Fail(call.waiter, ranks.status());
  std::erase_if(report.culprits,
                [&](Rank culprit) { return !Contains(**ranks, culprit); });
  const Key key(report.group, report.instance);
  auto found = failures_.find(key);
  if (found == failures_.end()) {
    const Status named =
        CheckName(limits_, "groups", {"instance", report.instance});
    if (!named.ok()) return out.Fail(call.waiter, named);
    if (const Event* const end = FindEnd(**ranks, IsWorld(report))) {
      out.TellAgain(call.member, *end);
      return out.Answer(call.waiter, GroupFailureReply());
    }
    found = Open(key, **ranks);
  }
  Failure& failure = found->second;
  if (failure.verdict == nullptr) {
    const uint64_t number = failure.number;
    deadlines_.erase({failure.deadline, key});
    Add(failure, *rank, std::move(report), now);
    deadlines_.emplace(failure.deadline, key);
    TryDecide(found, now, out);
    // The newest stays: its ranks wait.
    while ((this->size() > limits_.group_failures ||
            bytes_ > limits_.group_failure_bytes) &&
           !oldest_.empty() && oldest_.begin()->first != number) {
      Forget(failures_.find(Key(oldest_.begin()->second)));
    }
    found = failures_.find(key);
  }
  out.Answer(call.waiter, found == failures_.end() ? GroupFailureReply()
                                                   : found->second.verdict);
}

void GroupFailureTable::TryDecide(Failures::iterator failure, Instant now,
                                  Outbox& out) {
  const Key& key = failure->first;
  Failure& of = failure->second;
  const GroupFailureReport& best = of.reports.at(of.best);
  const bool explained =
      best.kind == GroupFailureKind::kSymptom && of.left.has_value();
  if (best.kind != GroupFailureKind::kDecision && now < of.deadline &&
      !explained && !AllReported(of)) {
    if (best.kind == GroupFailureKind::kTimeout && !best.late && !of.told) {
      of.told = true;
      Tell(of, Make(key, {.text = best.error.text}), out);
    }
    return;
  }
  FailureReport error = Conclude(of, now);
  out.Note(NoticeKind::kGroupFailed,
           absl::StrCat("group=", base::LogValue(key.first + key.second),
                        " cause=", TextInNotice(error.text)));
  if (key.first.empty()) {
    for (const auto& [rank, report] : of.reports) {
      const Member* const member = FindMember(rank);
      if (member == nullptr || !member->live()) continue;
      if (!world_verdict_.has_value() || rank == of.best) {
        world_verdict_ = WorldVerdict{member->id, error};
        world_verdict_->error.blames = best.culprits;
      }
    }
    return Forget(failure);
  }
  deadlines_.erase({of.deadline, key});
  of.verdict = Make(key, std::move(error));
  Tell(of, of.verdict, out);
  of.reports.clear();
  of.ranks.clear();
  of.suspects.clear();
  Count(of, FailureBytes(key, of) - of.bytes);
  journal_.GroupFailure(key.first, key.second);
}

GroupFailureReply GroupFailureTable::Make(const Key& key,
                                          FailureReport error) const {
  return std::make_shared<const GroupFailure>(
      GroupFailure{.generation = formation_->generation,
                   .group = key.first,
                   .instance = key.second,
                   .error = std::move(error)});
}

// Sends `what` to the members of the group.
void GroupFailureTable::Tell(const Failure& failure, GroupFailureReply what,
                             Outbox& out) const {
  std::vector<MemberId> audience;
  for (const Rank rank : failure.ranks) {
    const Member* const member = FindMember(rank);
    if (member != nullptr &&
        (member->live() || member->state == MemberState::kFailed)) {
      audience.push_back(member->id);
    }
  }
  if (audience.empty()) return;
  std::sort(audience.begin(), audience.end());
  out.events.push_back(Publication{
      std::make_shared<const std::vector<MemberId>>(std::move(audience)),
      MakeEvent(std::move(what))});
}

void GroupFailureTable::TellAgain(const Call& call, Rank rank,
                                  Outbox& out) const {
  for (const auto& [key, failure] : failures_) {
    if (failure.verdict == nullptr && !failure.told) continue;
    const std::vector<Rank>* ranks = &failure.ranks;
    if (failure.verdict != nullptr) ranks = groups_.FindRanks(key.first);
    if (ranks == nullptr || !Contains(*ranks, rank)) continue;
    GroupFailureReply what = failure.verdict;
    if (what == nullptr) {
      what = Make(key, {.text = failure.reports.at(failure.best).error.text});
    }
    out.TellAgain(call.member, MakeEvent(std::move(what)));
  }
}

FailureReport GroupFailureTable::Conclude(const Failure& failure,
                                          Instant now) const {
  const GroupFailureReport& best = failure.reports.at(failure.best);
  FailureReport error = best.error;
  if (best.kind == GroupFailureKind::kSymptom && failure.left.has_value()) {
    BlameTheLeft(failure, *failure.left, now, error);
  } else if (best.kind == GroupFailureKind::kTimeout) {
    BlameTheStuck(failure, best.group, now, error);
  } else if (best.kind == GroupFailureKind::kMismatch) {
    BlameTheOdd(failure, IsWorld(best), now, error);
  }
  // A fingerprint may be any bytes.
  error.text = CutText(base::Printable(error.text), limits_.text_bytes);
  return error;
}

void GroupFailureTable::BlameTheLeft(const Failure& failure, Rank left,
                                     Instant now, FailureReport& error) const {
  const GroupFailureReport* blames = &failure.reports.at(failure.best);
  for (const auto& [rank, report] : failure.reports) {
    const auto& culprits = report.culprits;
    if (std::find(culprits.begin(), culprits.end(), left) == culprits.end()) {
      continue;
    }
    blames = &report;
    break;
  }
  error = FailureReport();
  error.culprits = Describe({left}, blames->group, now);
  const MissingRank& who = error.culprits->missing[0];
  error.text = absl::StrCat(
      blames->call, ": ", RankText(left, FindSeat(left), IsWorld(*blames)),
      " left: ", base::Printable(who.cause_text), "; last progress: ",
      who.last_progress.empty() ? "none reported" : who.last_progress);
  error.verdict = UnavailableError("");
}

// Blames the ranks that have not reported or came late, if there are any.
void GroupFailureTable::BlameTheStuck(const Failure& failure,
                                      const std::string& group, Instant now,
                                      FailureReport& error) const {
  const bool all_late = failure.reports.at(failure.best).late;
  std::vector<Rank> stuck;
  for (const Rank rank : failure.ranks) {
    const auto found = failure.reports.find(rank);
    if (found == failure.reports.end() || (found->second.late && !all_late)) {
      stuck.push_back(rank);
    }
  }
  if (stuck.empty()) return;
  error.culprits = Describe(stuck, group, now);
  absl::StrAppend(&error.text, "; did not come to the end of it: ");
  for (size_t i = 0; i < std::min(stuck.size(), kRanksInTextMax); ++i) {
    const MissingRank& who = error.culprits->missing[i];
    absl::StrAppend(
        &error.text, i == 0 ? "" : "; ",
        RankText(stuck[i], FindSeat(stuck[i]), group.empty()),
        ", last progress: ",
        who.last_progress.empty() ? "none reported" : who.last_progress);
  }
  if (stuck.size() > kRanksInTextMax) {
    absl::StrAppend(&error.text, "; and ", stuck.size() - kRanksInTextMax,
                    " more");
  }
}

// Blames the ranks whose collective differs from that of most.
void GroupFailureTable::BlameTheOdd(const Failure& failure, bool in_world,
                                    Instant now, FailureReport& error) const {
  const std::vector<Rank>& before = failure.reports.at(failure.best).culprits;
  std::map<int, base::Fingerprint> prints;  // by rank of the group
  std::vector<int> suspects;
  for (size_t i = 0; i < failure.ranks.size(); ++i) {
    const Rank rank = failure.ranks[i];
    if (std::find(before.begin(), before.end(), rank) != before.end()) {
      suspects.push_back(static_cast<int>(i));
    }
    const auto found = failure.reports.find(rank);
    if (found == failure.reports.end() || found->second.fingerprint.empty()) {
      continue;
    }
    auto print = base::Fingerprint::Parse(found->second.fingerprint);
    if (print.ok()) prints.emplace(static_cast<int>(i), *std::move(print));
  }
  if (prints.empty()) return;
  const std::optional<base::Mismatch> odd =
      base::FindOdd(prints, static_cast<int>(failure.ranks.size()), suspects);
  if (!odd.has_value()) return;
  std::vector<Rank> culprits;
  absl::StrAppend(&error.text, "; ", odd->text);
  size_t shown = 0;
  for (const int place : odd->culprits) {
    const Rank rank = failure.ranks[static_cast<size_t>(place)];
    culprits.push_back(rank);
    if (++shown > kRanksInTextMax ||
        std::find(before.begin(), before.end(), rank) != before.end()) {
      continue;
    }
    const Seat& seat = FindSeat(rank);
    absl::StrAppend(&error.text, "; ", in_world ? "rank " : "global rank ",
                    rank.value(), " is pid ", seat.pid, " on ", seat.host);
  }
  auto described =
      std::make_shared<BarrierResult>(*Describe(culprits, /*group=*/"", now));
  for (MissingRank& who : described->missing) {
    who.cause_text = CutText(base::Printable(odd->text), limits_.text_bytes);
  }
  error.culprits = std::move(described);
}

// Describes the first of `culprits`, which are ascending.
BarrierReply GroupFailureTable::Describe(const std::vector<Rank>& culprits,
                                         absl::string_view group,
                                         Instant now) const {
  auto result = std::make_shared<BarrierResult>();
  result->expected = static_cast<int32_t>(culprits.size());
  for (const Rank rank : culprits) {
    if (result->missing.size() == kRanksInTextMax) break;
    const Seat& seat = FindSeat(rank);
    MissingRank& who = result->missing.emplace_back();
    who.rank = rank;
    who.member = seat.member;
    who.host = seat.host;
    who.pid = seat.pid;
    const Member* const member = FindMember(rank);
    if (member != nullptr) who.last_heard_ago = now - member->heard_at;
    if (HasLeft(rank)) {
      const Event& event = departed_.at(rank);
      who.cause = MissingCause::kLeft;
      who.cause_text = event.cause;
      who.last_progress = event.last_progress;
    } else if (member != nullptr) {
      who.cause_text = member->cause;
      const Instant until = member->live() ? now : member->state_since;
      who.last_progress = DescribeProgress(member->progress,
                                           until - member->progress_at, group);
    }
  }
  result->others = ToRanges(std::vector<Rank>(
      culprits.begin() + static_cast<ptrdiff_t>(result->missing.size()),
      culprits.end()));
  return result;
}

void GroupFailureTable::MemberDeparted(const Event& event, Instant now,
                                       Outbox& out) {
  if (!event.rank.has_value()) return;
  if (event.verdict.ok() || event.generation_over) Restore(event);
  std::vector<Key> open;
  for (const auto& [deadline, key] : deadlines_) open.push_back(key);
  for (const Key& key : open) {
    const auto found = failures_.find(key);
    Failure& failure = found->second;
    if (EndsGroup(event, failure.ranks, key.first.empty())) {
      Forget(found);
      continue;
    }
    if (!Contains(failure.ranks, *event.rank)) continue;
    if (event.kind == EventKind::kLeft &&
        failure.suspects.contains(*event.rank)) {
      failure.left = event.rank;
    }
    TryDecide(found, now, out);
  }
}

void GroupFailureTable::Expire(Instant now, Outbox& out) {
  while (!world_verdict_.has_value() && !deadlines_.empty() &&
         deadlines_.begin()->first <= now) {
    TryDecide(failures_.find(Key(deadlines_.begin()->second)), now, out);
  }
}

std::optional<Instant> GroupFailureTable::NextDeadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

GroupFailureRecord GroupFailureTable::MakeRecord(
    const std::string& group, const std::string& instance) const {
  GroupFailureRecord record;
  record.group = group;
  record.instance = instance;
  const auto found = failures_.find(Key(group, instance));
  record.erased = found == failures_.end() || found->second.verdict == nullptr;
  if (!record.erased) record.verdict = found->second.verdict;
  return record;
}

void GroupFailureTable::Restore(GroupFailureRecord record) {
  const Key key(std::move(record.group), std::move(record.instance));
  Failure& failure = Open(key, {})->second;
  failure.verdict = std::move(record.verdict);
  Count(failure, CountBytes(failure.verdict->error));
}

Status GroupFailureTable::CheckInvariants() const {
  int64_t bytes = 0;
  size_t open = 0;
  for (const auto& [key, failure] : failures_) {
    bytes += failure.bytes;
    const bool is_open = failure.verdict == nullptr;
    if (is_open) ++open;
    if (is_open != deadlines_.contains({failure.deadline, key}) ||
        is_open != failure.reports.contains(failure.best) ||
        !oldest_.contains(failure.number) ||
        failure.bytes != FailureBytes(key, failure)) {
      return InternalError(absl::StrCat("failure of group ",
                                        base::Quote(key.first), ": has ",
                                        failure.reports.size(), " reports"));
    }
  }
  if (bytes != bytes_ || open != deadlines_.size() ||
      oldest_.size() != failures_.size()) {
    return InternalError(
        absl::StrCat("group failures: count ", bytes_, " bytes, have ", bytes));
  }
  return OkStatus();
}

}  // namespace muster::coordinator::core
