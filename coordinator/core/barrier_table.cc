#include "coordinator/core/barrier_table.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "coordinator/core/barrier_text.h"
#include "coordinator/core/names.h"

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
      if (instance.decided()) continue;
      Decide(*series, instance, BarrierOutcome::kAborted, "", now, out);
    }
  }
  series_.clear();
  decisions_.clear();
  decision_bytes_ = 0;
}

absl::Status BarrierTable::CheckCaller(const Call& call,
                                       const BarrierRequest& request) const {
  absl::Status status;
  for (const Offer& offer :
       {Offer{"group", request.group}, Offer{"barrier", request.barrier}}) {
    if (!status.ok()) return status;
    status = CheckName(limits_, "barrier", offer);
  }
  if (status.ok()) status = CheckParkedTime(limits_, request.timeout);
  if (!status.ok()) return status;
  const std::string title = BarrierTitle(request.group, request.barrier, 0);
  if (formation_ == nullptr) {
    return absl::AbortedError(
        absl::StrCat(title, ": no generation has formed; rendezvous first"));
  }
  const Generation current = formation_->generation;
  if (request.generation < Generation() || request.generation > current) {
    return absl::InvalidArgumentError(
        absl::StrCat(title, ": generation ", request.generation.value(),
                     " has not begun, current is ", current.value(),
                     "; take the number that the rendezvous returned"));
  }
  if (request.generation != Generation() && request.generation != current) {
    return absl::AbortedError(absl::StrCat(
        title, ": generation ", request.generation.value(),
        " is over, current is ", current.value(), "; rendezvous again"));
  }
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  const int32_t rank = request.rank.value();
  if (rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(title, ": rank ", rank, " is outside of world size ", size,
                     " (ranks 0 to ", size - 1, ")"));
  }
  const Seat& seat = formation_->world[rank];
  if (seat.member != call.member) {
    return absl::InvalidArgumentError(
        absl::StrCat(title, ": rank ", rank, " of generation ", current.value(),
                     " is held by member \"", seat.member.value(),
                     "\", not by \"", call.member.value(), "\""));
  }
  if (seat.incarnation != call.incarnation) {
    return absl::AbortedError(
        absl::StrCat(title, ": rank ", rank, " of generation ", current.value(),
                     " is held by incarnation ", seat.incarnation.value(),
                     " of member \"", call.member.value(), "\", not by ",
                     call.incarnation.value(), "; rendezvous again"));
  }
  // It lives, so it has joined the next generation: an arrival that is late.
  if (const auto gone = gone_.find(request.rank); gone != gone_.end()) {
    return absl::AbortedError(absl::StrCat(
        title, ": rank ", rank, " ", gone->second.text, "; rendezvous again"));
  }
  return absl::OkStatus();
}

// The participants in ascending order; empty when they are all ranks.
absl::StatusOr<std::vector<Rank>> BarrierTable::Participants(
    const BarrierRequest& request) const {
  const std::vector<Rank>* const group = groups_.RanksOf(request.group);
  if (request.ranks.empty() && group == nullptr) return std::vector<Rank>();
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  // A group's ranks stand in order, and were looked at when it was registered.
  if (request.ranks.empty() &&
      std::binary_search(group->begin(), group->end(), request.rank)) {
    return static_cast<int32_t>(group->size()) == size ? std::vector<Rank>()
                                                       : *group;
  }
  const std::string title = BarrierTitle(request.group, request.barrier, 0);
  std::vector<Rank> ranks = request.ranks.empty() ? *group : request.ranks;
  std::sort(ranks.begin(), ranks.end());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].value() < 0 || ranks[i].value() >= size) {
      return absl::InvalidArgumentError(absl::StrCat(
          title, ": participant ", ranks[i].value(),
          " is outside of world size ", size, " (ranks 0 to ", size - 1, ")"));
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat(
          title, ": participant ", ranks[i].value(), " is listed twice"));
    }
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), request.rank)) {
    return absl::InvalidArgumentError(absl::StrCat(
        title, ": rank ", request.rank.value(),
        " is not among the participants ", ParticipantsText(ranks)));
  }
  if (group != nullptr && ranks != *group) {
    return absl::InvalidArgumentError(absl::StrCat(
        title, ": ", RankText(request.rank), " expects ",
        ParticipantsText(ranks), ", the group was registered with ",
        ParticipantsText(*group)));
  }
  if (static_cast<int32_t>(ranks.size()) == size) ranks.clear();
  return ranks;
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
  Series* const found = series.get();
  series_.emplace(std::move(key), std::move(series));
  return found;
}

// Forgets the numbering of the barrier that has been unused for longest. Only
// of one that all its ranks have left equally often: all of them begin again
// with instance 1.
bool BarrierTable::MakeRoom() {
  auto oldest = series_.end();
  for (auto it = series_.begin(); it != series_.end(); ++it) {
    if (!it->second->instances.empty() || it->second->dropped_results) continue;
    if (oldest == series_.end() ||
        it->second->used_at < oldest->second->used_at) {
      oldest = it;
    }
  }
  if (oldest == series_.end()) return false;
  Changed(*oldest->second);
  series_.erase(oldest);
  return true;
}

void BarrierTable::Arrive(const Call& call, const BarrierRequest& request,
                          Instant now, Outbox& out) {
  absl::Status status = CheckCaller(call, request);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  absl::StatusOr<std::vector<Rank>> participants = Participants(request);
  if (!participants.ok()) return out.Fail(call.waiter, participants.status());
  absl::StatusOr<Series*> found = FindSeries(request, *participants);
  if (!found.ok()) return out.Fail(call.waiter, found.status());
  Series& series = **found;
  series.used_at = ++calls_;

  const auto taken = series.taken.find(request.rank);
  const int64_t number = taken == series.taken.end() ? 1 : taken->second + 1;
  if (ReplyIfOver(series, number, call, request, out)) return;
  if (RefuseOtherParticipants(series, call, request, *participants, now, out)) {
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
    Changed(series);
    series.taken[request.rank] = number;
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
  Changed(series);
  series.taken[request.rank] = number;
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
    int64_t& taken = series.taken[request.rank];
    taken = std::max(taken, instance.number);
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
  deadlines_.insert({instance.deadline, {series.key, number}});
  return &instance;
}

// Decides the instance where that can be done now.
void BarrierTable::Settle(Series& series, Instance& instance, Instant now,
                          Outbox& out) {
  if (static_cast<int32_t>(instance.arrived.size()) == Expected(series)) {
    Decide(series, instance, BarrierOutcome::kReleased, "", now, out);
  } else if (!instance.wait_all_ranks && AnyGone(series, instance)) {
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
    result->missing = Missing(series, instance, now, formation_->world.size());
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
          ? absl::StrCat("group=", series.key.first, " barrier=",
                         series.key.second, " instance=", instance.number)
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
  decision_bytes_ -= decided->second.bytes;
  decisions_.erase(decided->second.decided_as);
  return series.instances.erase(decided);
}

// Drops the decisions that nobody can ask for any more, and the oldest of those
// that are too many.
void BarrierTable::RetireInstances(Series& series) {
  Changed(series);
  int64_t kept = 0;
  for (auto it = series.instances.begin(); it != series.instances.end();) {
    const Instance& instance = it->second;
    if (!instance.decided()) {
      ++it;
      continue;
    }
    const auto& missing = instance.result->missing;
    const bool all_know =
        std::all_of(missing.begin(), missing.end(), [&](const auto& absent) {
          if (gone_.contains(absent.rank)) return true;
          const auto taken = series.taken.find(absent.rank);
          return taken != series.taken.end() &&
                 taken->second >= instance.number;
        });
    if (!all_know) ++kept;
    it = all_know ? Drop(series, it) : std::next(it);
  }
  for (auto it = series.instances.begin(); kept > limits_.decided_barriers;) {
    if (!it->second.decided()) {
      ++it;
      continue;
    }
    it = Drop(series, it);
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
}

// Whoever could ask for a decision that is not kept has asked, or has gone: the
// name can be used anew.
void BarrierTable::ForgetDropped(Series& series) const {
  if (!series.dropped_results || !series.instances.empty()) return;
  const int32_t expected = Expected(series);
  for (int32_t i = 0; i < expected; ++i) {
    const Rank rank =
        series.participants.empty() ? Rank(i) : series.participants[i];
    const auto taken = series.taken.find(rank);
    const bool lags =
        taken == series.taken.end() || taken->second < series.newest;
    if (lags && !gone_.contains(rank)) return;
  }
  series.dropped_results = false;
}

void BarrierTable::MemberDeparted(const Event& event,
                                  const absl::Status& status, Instant now,
                                  Outbox& out) {
  if (formation_ == nullptr || !event.rank.has_value() ||
      event.generation != formation_->generation) {
    return;
  }
  const Rank rank = *event.rank;
  gone_.emplace(rank, Departure{CauseOf(event.kind), event.cause});
  for (auto& [key, series] : series_) {
    if (!TakesPart(*series, rank)) continue;
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
  if (instance.arrived.empty() && instance.number == series.newest) {
    deadlines_.erase({instance.deadline, {series.key, instance.number}});
    series.instances.erase(place.instance);
    --series.newest;
  }
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

bool BarrierTable::AnyGone(const Series& series,
                           const Instance& instance) const {
  return std::any_of(gone_.begin(), gone_.end(), [&](const auto& entry) {
    return TakesPart(series, entry.first) &&
           !instance.arrived.contains(entry.first);
  });
}

}  // namespace muster::coordinator::core
