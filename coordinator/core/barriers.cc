#include "coordinator/core/barriers.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/barrier_text.h"

namespace muster::coordinator::core {
namespace {

MissingCause CauseOf(EventKind kind) {
  switch (kind) {
    case EventKind::kLost:
      return MissingCause::kLost;
    case EventKind::kFailed:
      return MissingCause::kFailed;
    case EventKind::kLeft:
      return MissingCause::kLeft;
    case EventKind::kReplaced:
    case EventKind::kWaiting:
      break;
  }
  return MissingCause::kReplaced;
}

NoticeKind NoticeOf(BarrierOutcome outcome) {
  switch (outcome) {
    case BarrierOutcome::kReleased:
      return NoticeKind::kBarrierReleased;
    case BarrierOutcome::kTimedOut:
      return NoticeKind::kBarrierTimedOut;
    case BarrierOutcome::kMemberLost:
      return NoticeKind::kBarrierMemberLost;
    case BarrierOutcome::kConflict:
      return NoticeKind::kBarrierConflict;
    case BarrierOutcome::kAborted:
      break;
  }
  return NoticeKind::kBarrierAborted;
}

}  // namespace

BarrierTable::BarrierTable(const Limits* limits, WaiterQuota* quota,
                           const Membership* membership,
                           const GroupTable* groups, Journal* journal)
    : limits_(*limits),
      quota_(*quota),
      membership_(*membership),
      groups_(*groups),
      journal_(*journal) {}

BarrierTable::~BarrierTable() = default;

void BarrierTable::Reset(FormationReply formation, Instant now, Outbox& out) {
  Clear(now, out);
  gone_.clear();
  formation_ = std::move(formation);
}

void BarrierTable::Clear(Instant now, Outbox& out) {
  for (auto& [key, series] : series_) {
    Changed(*series);
    for (auto& [number, instance] : series->instances) {
      if (!instance.decided()) {
        Decide(*series, instance, BarrierOutcome::kAborted, "", now, out);
      }
      Forgotten(*series, instance);
    }
  }
  idle_.clear();
  series_.clear();
  decisions_.clear();
  decision_bytes_ = 0;
}

absl::StatusOr<BarrierTable::Series*> BarrierTable::FindSeries(
    const BarrierRequest& request, const std::vector<Rank>& participants) {
  Key key(request.group, request.barrier);
  const auto it = series_.find(key);
  if (it != series_.end()) {
    Series& series = *it->second;
    if (series.participants != participants && series.instances.empty() &&
        !series.dropped_results) {
      // Nobody is in it: the name is free for another set of ranks.
      Changed(series);
      series.participants = participants;
      series.founder = request.rank;
      series.taken.clear();
      series.newest = 0;
      series.past_newest = 0;
      series.gone = CountGone(series);
    }
    return &series;
  }
  if (static_cast<int64_t>(series_.size()) >= limits_.open_barriers &&
      !MakeRoom()) {
    return CheckLimit("open_barriers", limits_.open_barriers,
                      static_cast<int64_t>(series_.size()) + 1,
                      {"barrier", request.barrier});
  }
  auto series = std::make_unique<Series>();
  series->key = key;
  series->participants = participants;
  series->founder = request.rank;
  series->gone = CountGone(*series);
  Series* const found = series.get();
  series_.emplace(std::move(key), std::move(series));
  return found;
}

// Forgets the numbering of the barrier that has been unused for longest. Only
// of one that all its ranks have left equally often: all of them begin again
// with instance 1.
bool BarrierTable::MakeRoom() {
  if (idle_.empty()) return false;
  Series& oldest = *idle_.begin()->second;
  idle_.erase(idle_.begin());
  Changed(oldest);
  series_.erase(Key(oldest.key));
  return true;
}

// After anything that may have changed whether the barrier may be forgotten,
// or when it was used.
void BarrierTable::Relist(Series& series) {
  const bool idle = series.instances.empty() && !series.dropped_results;
  const uint64_t as = idle ? series.used_at : 0;
  if (as == series.idle_as) return;
  if (series.idle_as != 0) idle_.erase(series.idle_as);
  if (as != 0) idle_.emplace(as, &series);
  series.idle_as = as;
}

void BarrierTable::Arrive(const Call& call, const BarrierRequest& request,
                          Instant now, Outbox& out) {
  absl::Status status = CheckCaller(call, request);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  absl::StatusOr<std::vector<Rank>> participants = Participants(request);
  if (!participants.ok()) return out.Fail(call.waiter, participants.status());
  absl::StatusOr<Series*> found = FindSeries(request, *participants);
  if (!found.ok()) return out.Fail(call.waiter, found.status());
  (*found)->used_at = ++calls_;
  ArriveAt(**found, *participants, call, request, now, out);
  Relist(**found);
}

void BarrierTable::ArriveAt(Series& series,
                            const std::vector<Rank>& participants,
                            const Call& call, const BarrierRequest& request,
                            Instant now, Outbox& out) {
  const auto taken = series.taken.find(request.rank);
  const int64_t number = taken == series.taken.end() ? 1 : taken->second + 1;
  if (ReplyIfOver(series, number, call, request, out)) return;
  if (RefuseOtherParticipants(series, call, request, participants, now, out)) {
    return;
  }
  absl::StatusOr<Instance*> opened = OpenInstance(series, number, request, now);
  if (!opened.ok()) return out.Fail(call.waiter, opened.status());
  Instance& instance = **opened;
  series.taken[request.rank] = number;
  instance.arrived.emplace(request.rank, call.waiter);
  places_by_waiter_.emplace(call.waiter, Place{&series, number, request.rank});
  if (instance.wait_all_ranks != request.wait_all_ranks) {
    Decide(series, instance, BarrierOutcome::kConflict,
           absl::StrCat(RankText(request.rank), " has wait_all_ranks=",
                        request.wait_all_ranks ? "true" : "false", ", ",
                        RankText(instance.first), " has wait_all_ranks=",
                        instance.wait_all_ranks ? "true" : "false"),
           now, out);
    return RetireInstances(series);
  }
  Settle(series, instance, now, out);
}

// Gives a late caller the decision; false when there is none yet.
bool BarrierTable::ReplyIfOver(Series& series, int64_t number, const Call& call,
                               const BarrierRequest& request, Outbox& out) {
  if (number > series.newest || !TakesPart(series, request.rank)) return false;
  const auto it = series.instances.find(number);
  if (it == series.instances.end()) {
    Take(series, request.rank, number);
    ForgetDropped(series);
    out.Fail(call.waiter,
             absl::OutOfRangeError(absl::StrCat(
                 BarrierTitle(request.group, request.barrier, number),
                 " was decided long ago: it is at #", series.newest,
                 " now, and only the last ", limits_.decided_barriers,
                 " decisions are kept, and ", limits_.decided_barrier_bytes,
                 " bytes of those of all barriers")));
    return true;
  }
  if (!it->second.decided()) return false;
  Take(series, request.rank, number);
  out.replies.push_back(
      Reply{call.waiter, it->second.status, it->second.result});
  RetireInstances(series);
  return true;
}

// Fails the caller, and with it whoever waits under the same name for another
// set of ranks: one of them is wrong, and both would wait in vain.
bool BarrierTable::RefuseOtherParticipants(
    Series& series, const Call& call, const BarrierRequest& request,
    const std::vector<Rank>& participants, Instant now, Outbox& out) {
  if (series.participants == participants) return false;
  const std::string conflict = absl::StrCat(
      RankText(request.rank), " expects ", ParticipantsText(participants), ", ",
      RankText(series.founder), " expects ",
      ParticipantsText(series.participants));
  const auto it =
      std::find_if(series.instances.begin(), series.instances.end(),
                   [](const auto& entry) { return !entry.second.decided(); });
  if (it == series.instances.end()) {
    out.Fail(call.waiter,
             absl::InvalidArgumentError(absl::StrCat(
                 BarrierTitle(request.group, request.barrier, series.newest),
                 ": ", conflict)));
    return true;
  }
  Instance& instance = it->second;
  Decide(series, instance, BarrierOutcome::kConflict, conflict, now, out);
  out.replies.push_back(Reply{call.waiter, instance.status, instance.result});
  if (TakesPart(series, request.rank)) {
    Take(series, request.rank,
         std::max(series.taken[request.rank], instance.number));
  }
  RetireInstances(series);
  return true;
}

// Returns the instance that the caller arrives at, and takes its place in the
// waiters' quota.
absl::StatusOr<BarrierTable::Instance*> BarrierTable::OpenInstance(
    Series& series, int64_t number, const BarrierRequest& request,
    Instant now) {
  const auto it = series.instances.find(number);
  absl::Status status;
  if (it == series.instances.end()) {
    status = CheckLimit("open_barriers", limits_.open_barriers, open() + 1,
                        {"barrier", request.barrier});
  }
  if (status.ok()) status = quota_.Take(0, {"barrier", request.barrier});
  if (!status.ok()) return status;
  if (it != series.instances.end()) return &it->second;
  Instance& instance = series.instances[number];
  instance.number = number;
  instance.wait_all_ranks = request.wait_all_ranks;
  instance.timeout = request.timeout;
  instance.first_at = now;
  instance.deadline = DeadlineAfter(now, request.timeout);
  instance.first = request.rank;
  series.newest = number;
  series.past_newest = 0;
  deadlines_.insert({instance.deadline, {series.key, number}});
  return &instance;
}

// Decides the instance where that can be done now.
void BarrierTable::Settle(Series& series, Instance& instance, Instant now,
                          Outbox& out) {
  if (static_cast<int32_t>(instance.arrived.size()) == Expected(series)) {
    Decide(series, instance, BarrierOutcome::kReleased, "", now, out);
  } else if (!instance.wait_all_ranks && series.gone > 0) {
    Decide(series, instance, BarrierOutcome::kMemberLost, "", now, out);
  } else if (instance.deadline <= now) {
    Decide(series, instance, BarrierOutcome::kTimedOut, "", now, out);
  } else {
    return;
  }
  RetireInstances(series);
}

void BarrierTable::Decide(Series& series, Instance& instance,
                          BarrierOutcome outcome, absl::string_view conflict,
                          Instant now, Outbox& out) {
  Changed(series);
  Decided(series, instance);
  auto result = std::make_shared<BarrierResult>();
  result->group = series.key.first;
  result->barrier = series.key.second;
  result->instance = instance.number;
  result->outcome = outcome;
  result->expected = Expected(series);
  result->arrived = static_cast<int32_t>(instance.arrived.size());
  result->first_to_arrive = instance.first;
  result->waited = outcome == BarrierOutcome::kTimedOut
                       ? instance.timeout
                       : now - instance.first_at;
  if (outcome != BarrierOutcome::kReleased) {
    result->missing =
        Missing(series, instance, now, kMissingInResultMax, &result->others);
  } else {
    instance.past = result->expected;
  }
  instance.status = BarrierStatus(*result, conflict, formation_->generation,
                                  membership_.options().lease);
  instance.result = std::move(result);
  Keep(series, instance);
  for (const auto& [rank, waiter] : instance.arrived) {
    out.replies.push_back(Reply{waiter, instance.status, instance.result});
    places_by_waiter_.erase(waiter);
    quota_.Release(0);
  }
  deadlines_.erase({instance.deadline, {series.key, instance.number}});
  out.Note(
      NoticeOf(outcome),
      outcome == BarrierOutcome::kReleased
          ? absl::StrCat("group=", base::LogValue(series.key.first),
                         " barrier=", base::LogValue(series.key.second),
                         " instance=", instance.number)
          : absl::StrCat("cause=", TextInNotice(instance.status.message())),
      now - instance.first_at);
}

void BarrierTable::Keep(Series& series, Instance& instance) {
  instance.decided_as = ++decided_;
  instance.bytes = BytesOf(*instance.result) +
                   static_cast<int64_t>(instance.status.message().size());
  decision_bytes_ += instance.bytes;
  decisions_.emplace(instance.decided_as,
                     std::make_pair(&series, instance.number));
}

BarrierTable::Instances::iterator BarrierTable::Drop(
    Series& series, Instances::iterator decided) {
  Forgotten(series, decided->second);
  decision_bytes_ -= decided->second.bytes;
  decisions_.erase(decided->second.decided_as);
  return series.instances.erase(decided);
}

// Drops the decisions that nobody can ask for any more, and the oldest of those
// that are too many.
void BarrierTable::RetireInstances(Series& series) {
  int64_t kept = 0;
  for (auto it = series.instances.begin(); it != series.instances.end();) {
    Instance& instance = it->second;
    if (!instance.decided()) {
      ++it;
      continue;
    }
    const bool all_know = AllPast(series, instance.number, instance.past);
    if (!all_know) ++kept;
    it = all_know ? Drop(series, it) : std::next(it);
  }
  for (auto it = series.instances.begin(); kept > limits_.decided_barriers;) {
    if (!it->second.decided()) {
      ++it;
      continue;
    }
    it = Drop(series, it);
    Changed(series);
    series.dropped_results = true;
    --kept;
  }
  while (decision_bytes_ > limits_.decided_barrier_bytes) {
    const auto [oldest, number] = decisions_.begin()->second;
    Changed(*oldest);
    Drop(*oldest, oldest->instances.find(number));
    oldest->dropped_results = true;
  }
  ForgetDropped(series);
  Relist(series);
}

// Whoever could ask for a decision that is not kept has asked, or has gone: the
// name can be used anew.
void BarrierTable::ForgetDropped(Series& series) {
  if (!series.dropped_results || !series.instances.empty() ||
      !AllPast(series, series.newest, series.past_newest)) {
    return;
  }
  Changed(series);
  series.dropped_results = false;
}

// Whether each participant has had the instance, or can call no more. `from` is
// where to look first, and is moved on: those before it will always be so. A
// barrier of n ranks that come one by one is not looked at n times.
bool BarrierTable::AllPast(const Series& series, int64_t number,
                           int32_t& from) const {
  const int32_t expected = Expected(series);
  for (; from < expected; ++from) {
    const Rank rank = ParticipantAt(series, from);
    const auto taken = series.taken.find(rank);
    const bool lags = taken == series.taken.end() || taken->second < number;
    if (lags && !gone_.contains(rank)) return false;
  }
  return true;
}

void BarrierTable::MemberDeparted(const Event& event,
                                  const absl::Status& status, Instant now,
                                  Outbox& out) {
  if (formation_ == nullptr || !event.rank.has_value() ||
      event.generation != formation_->generation) {
    return;
  }
  const Rank rank = *event.rank;
  const bool first =
      gone_.emplace(rank, Departure{CauseOf(event.kind), event.cause}).second;
  // One that gave up its rank and goes now has no arrivals any more.
  if (!first) return;
  for (auto& [key, series] : series_) {
    if (!TakesPart(*series, rank)) continue;
    ++series->gone;
    std::vector<Instance*> open;
    for (auto& [number, instance] : series->instances) {
      if (!instance.decided()) open.push_back(&instance);
    }
    for (Instance* instance : open) {
      const auto arrived = instance->arrived.find(rank);
      if (arrived != instance->arrived.end()) {
        out.Fail(arrived->second, status);
        places_by_waiter_.erase(arrived->second);
        quota_.Release(0);
        instance->arrived.erase(arrived);
      }
      if (!instance->wait_all_ranks) {
        Decide(*series, *instance, BarrierOutcome::kMemberLost, "", now, out);
      }
    }
    RetireInstances(*series);
  }
}

bool BarrierTable::Cancel(WaiterId waiter, const absl::Status& status,
                          Outbox& out) {
  const auto it = places_by_waiter_.find(waiter);
  if (it == places_by_waiter_.end()) return false;
  const Place place = it->second;
  Series& series = *place.series;
  Instance& instance = series.instances.at(place.instance);
  out.Fail(waiter, status);
  places_by_waiter_.erase(it);
  quota_.Release(0);
  instance.arrived.erase(place.rank);
  int64_t& taken = series.taken[place.rank];
  // Where the rank has gone on to a later instance, it must not come back to
  // this one: it stays missing here.
  if (taken == place.instance) --taken;
  series.past_newest = 0;
  if (instance.arrived.empty() && instance.number == series.newest) {
    deadlines_.erase({instance.deadline, {series.key, instance.number}});
    series.instances.erase(place.instance);
    --series.newest;
  }
  Relist(series);
  return true;
}

bool BarrierTable::Retarget(WaiterId older, WaiterId newer) {
  const auto it = places_by_waiter_.find(older);
  if (it == places_by_waiter_.end()) return false;
  const Place place = it->second;
  places_by_waiter_.erase(it);
  places_by_waiter_.emplace(newer, place);
  place.series->instances.at(place.instance).arrived.at(place.rank) = newer;
  return true;
}

void BarrierTable::Expire(Instant now, Outbox& out) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto [key, number] = deadlines_.begin()->second;
    Series& series = *series_.at(key);
    Decide(series, series.instances.at(number), BarrierOutcome::kTimedOut, "",
           now, out);
    RetireInstances(series);
  }
}

std::optional<Instant> BarrierTable::NextDeadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

int32_t BarrierTable::Expected(const Series& series) const {
  return static_cast<int32_t>(series.participants.empty()
                                  ? formation_->world.size()
                                  : series.participants.size());
}

bool BarrierTable::TakesPart(const Series& series, Rank rank) const {
  return series.participants.empty() ||
         std::binary_search(series.participants.begin(),
                            series.participants.end(), rank);
}

Rank BarrierTable::ParticipantAt(const Series& series, int32_t place) const {
  return series.participants.empty() ? Rank(place) : series.participants[place];
}

int32_t BarrierTable::CountGone(const Series& series) const {
  if (series.participants.empty()) return static_cast<int32_t>(gone_.size());
  return static_cast<int32_t>(
      std::count_if(series.participants.begin(), series.participants.end(),
                    [&](Rank rank) { return gone_.contains(rank); }));
}

}  // namespace muster::coordinator::core
