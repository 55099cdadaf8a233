#include "coordinator/core/barriers.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/barrier_text.h"
#include "coordinator/core/names.h"
#include "coordinator/core/progress.h"

namespace muster::coordinator::core {
namespace {

MissingCause ToMissingCause(EventKind kind) {
  switch (kind) {
    case EventKind::kLost:
      return MissingCause::kLost;
    case EventKind::kFailed:
      return MissingCause::kFailed;
    case EventKind::kLeft:
      return MissingCause::kLeft;
    case EventKind::kReplaced:
    case EventKind::kWaiting:
    case EventKind::kGroupFailed:
      break;
  }
  return MissingCause::kReplaced;
}

NoticeKind ToNoticeKind(BarrierOutcome outcome) {
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
    JournalSeries(*series);
    for (auto& [number, instance] : series->instances) {
      if (!instance.decided()) {
        Decide(*series, instance, BarrierOutcome::kAborted, "", now, out);
      }
      JournalForgotten(*series, instance);
    }
  }
  idle_.clear();
  series_.clear();
  decisions_.clear();
  decision_bytes_ = 0;
}

StatusOr<BarrierTable::Series*> BarrierTable::FindSeries(
    const BarrierRequest& request, const std::vector<Rank>& participants) {
  Key key(request.group, request.barrier);
  const auto it = series_.find(key);
  if (it != series_.end()) {
    Series& series = *it->second;
    if (series.participants != participants && series.instances.empty() &&
        !series.dropped_results) {
      // Nobody is in the series: the name is free for other participants.
      JournalSeries(series);
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

// Forgets the numbering of the barrier that has been unused for longest. All
// its ranks have left it equally often, so all begin again with instance 1.
bool BarrierTable::MakeRoom() {
  if (idle_.empty()) return false;
  Series& oldest = *idle_.begin()->second;
  idle_.erase(idle_.begin());
  JournalSeries(oldest);
  series_.erase(Key(oldest.key));
  return true;
}

// Updates idle_. Call it after any change of used_at, or of whether the barrier
// may be forgotten.
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
  Status status = CheckCaller(call, request);
  if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  StatusOr<std::vector<Rank>> participants = Participants(request);
  if (!participants.ok()) return out.Fail(call.waiter, participants.status());
  StatusOr<Series*> found = FindSeries(request, *participants);
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
  StatusOr<Instance*> opened = OpenInstance(series, number, request, now);
  if (!opened.ok()) return out.Fail(call.waiter, opened.status());
  Instance& instance = **opened;
  series.taken[request.rank] = number;
  instance.arrived.emplace(request.rank, call.waiter);
  waiting_ranks_.emplace(call.waiter,
                         WaitingRank{&series, number, request.rank});
  if (instance.wait_all_ranks != request.wait_all_ranks) {
    Decide(series, instance, BarrierOutcome::kConflict,
           absl::StrCat(RankText(request.rank), " has wait_all_ranks=",
                        request.wait_all_ranks ? "true" : "false", ", ",
                        RankText(instance.first), " has wait_all_ranks=",
                        instance.wait_all_ranks ? "true" : "false"),
           now, out);
    return RetireInstances(series);
  }
  TryDecide(series, instance, now, out);
}

// Gives a late caller the decision. Returns false if there is none yet.
bool BarrierTable::ReplyIfOver(Series& series, int64_t number, const Call& call,
                               const BarrierRequest& request, Outbox& out) {
  if (number > series.newest || !TakesPart(series, request.rank)) return false;
  const auto it = series.instances.find(number);
  if (it == series.instances.end()) {
    Take(series, request.rank, number);
    ForgetDropped(series);
    out.Fail(call.waiter,
             OutOfRangeError(absl::StrCat(
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

// Fails the caller, and the callers that wait under the same name for another
// set of ranks: one side is wrong, and all would wait in vain.
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
             InvalidArgumentError(absl::StrCat(
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

// Returns the instance at which the caller arrives, and counts the caller in
// the waiters' quota.
StatusOr<BarrierTable::Instance*> BarrierTable::OpenInstance(
    Series& series, int64_t number, const BarrierRequest& request,
    Instant now) {
  const auto it = series.instances.find(number);
  Status status;
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

// Decides the instance if that is possible now.
void BarrierTable::TryDecide(Series& series, Instance& instance, Instant now,
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
  JournalSeries(series);
  JournalDecision(series, instance);
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
    waiting_ranks_.erase(waiter);
    quota_.Release(0);
  }
  deadlines_.erase({instance.deadline, {series.key, instance.number}});
  out.Note(
      ToNoticeKind(outcome),
      outcome == BarrierOutcome::kReleased
          ? absl::StrCat("group=", base::LogValue(series.key.first),
                         " barrier=", base::LogValue(series.key.second),
                         " instance=", instance.number)
          : absl::StrCat("cause=", TextInNotice(instance.status.message())),
      now - instance.first_at);
}

void BarrierTable::Keep(Series& series, Instance& instance) {
  instance.decided_as = ++decided_;
  instance.bytes = CountBytes(*instance.result) +
                   static_cast<int64_t>(instance.status.message().size());
  decision_bytes_ += instance.bytes;
  decisions_.emplace(instance.decided_as,
                     std::make_pair(&series, instance.number));
}

BarrierTable::Instances::iterator BarrierTable::Drop(
    Series& series, Instances::iterator decided) {
  JournalForgotten(series, decided->second);
  decision_bytes_ -= decided->second.bytes;
  decisions_.erase(decided->second.decided_as);
  return series.instances.erase(decided);
}

// Drops the decisions that nobody can ask for any more, and the oldest ones
// beyond the limits.
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
    JournalSeries(series);
    series.dropped_results = true;
    --kept;
  }
  while (decision_bytes_ > limits_.decided_barrier_bytes) {
    const auto [oldest, number] = decisions_.begin()->second;
    JournalSeries(*oldest);
    Drop(*oldest, oldest->instances.find(number));
    oldest->dropped_results = true;
  }
  ForgetDropped(series);
  Relist(series);
}

// Makes the name free if every member that could ask for a dropped decision has
// asked or gone.
void BarrierTable::ForgetDropped(Series& series) {
  if (!series.dropped_results || !series.instances.empty() ||
      !AllPast(series, series.newest, series.past_newest)) {
    return;
  }
  JournalSeries(series);
  series.dropped_results = false;
}

// Whether each participant has received the instance or cannot call any more.
// Starts at index `from` and advances it, because the participants before it
// stay past. So a barrier of n ranks that come one by one is not scanned n
// times.
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

void BarrierTable::MemberDeparted(const Event& event, const Status& status,
                                  Instant now, Outbox& out) {
  if (formation_ == nullptr || !event.rank.has_value() ||
      event.generation != formation_->generation) {
    return;
  }
  const Rank rank = *event.rank;
  const bool first =
      gone_.emplace(rank, Departure{ToMissingCause(event.kind), event.cause})
          .second;
  // A member that had given up its rank has no arrivals any more.
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
        waiting_ranks_.erase(arrived->second);
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

bool BarrierTable::Cancel(WaiterId waiter, const Status& status, Outbox& out) {
  const auto it = waiting_ranks_.find(waiter);
  if (it == waiting_ranks_.end()) return false;
  const WaitingRank place = it->second;
  Series& series = *place.series;
  Instance& instance = series.instances.at(place.instance);
  out.Fail(waiter, status);
  waiting_ranks_.erase(it);
  quota_.Release(0);
  instance.arrived.erase(place.rank);
  int64_t& taken = series.taken[place.rank];
  // If the rank has gone on to a later instance, it must not come back to this
  // one: it stays missing here.
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
  const auto it = waiting_ranks_.find(older);
  if (it == waiting_ranks_.end()) return false;
  const WaitingRank place = it->second;
  waiting_ranks_.erase(it);
  waiting_ranks_.emplace(newer, place);
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

// Validates the caller's arguments.

Status BarrierTable::CheckCaller(const Call& call,
                                 const BarrierRequest& request) const {
  Status status;
  for (const Offer& offer :
       {Offer{"group", request.group}, Offer{"barrier", request.barrier}}) {
    if (!status.ok()) return status;
    status = CheckName(limits_, "barrier", offer);
  }
  if (status.ok()) status = CheckParkedTime(limits_, request.timeout);
  if (!status.ok()) return status;
  const std::string title = BarrierTitle(request.group, request.barrier, 0);
  if (formation_ == nullptr) {
    return AbortedError(
        absl::StrCat(title, ": no generation has formed; rendezvous first"));
  }
  const Generation current = formation_->generation;
  if (request.generation < Generation() || request.generation > current) {
    return InvalidArgumentError(
        absl::StrCat(title, ": generation ", request.generation.value(),
                     " has not begun, current is ", current.value(),
                     "; take the number that the rendezvous returned"));
  }
  if (request.generation != Generation() && request.generation != current) {
    return AbortedError(absl::StrCat(
        title, ": generation ", request.generation.value(),
        " is over, current is ", current.value(), "; rendezvous again"));
  }
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  const int32_t rank = request.rank.value();
  if (rank < 0 || rank >= size) {
    return InvalidArgumentError(absl::StrCat(title, ": rank ", rank,
                                             " is outside of world size ", size,
                                             " (ranks 0 to ", size - 1, ")"));
  }
  const Seat& seat = formation_->world[rank];
  if (seat.member != call.member) {
    return InvalidArgumentError(
        absl::StrCat(title, ": rank ", rank, " of generation ", current.value(),
                     " is held by member ", base::Quote(seat.member.value()),
                     ", not by ", base::Quote(call.member.value())));
  }
  if (seat.incarnation != call.incarnation) {
    return AbortedError(absl::StrCat(
        title, ": rank ", rank, " of generation ", current.value(),
        " is held by incarnation ", seat.incarnation.value(), " of member ",
        base::Quote(call.member.value()), ", not by ", call.incarnation.value(),
        "; rendezvous again"));
  }
  // The caller lives, so it has joined the next generation and this arrival is
  // late.
  if (const auto gone = gone_.find(request.rank); gone != gone_.end()) {
    return AbortedError(absl::StrCat(title, ": rank ", rank, " ",
                                     gone->second.text, "; rendezvous again"));
  }
  return OkStatus();
}

// The participants in ascending order; empty: all ranks.
StatusOr<std::vector<Rank>> BarrierTable::Participants(
    const BarrierRequest& request) const {
  const std::vector<Rank>* const group = groups_.FindRanks(request.group);
  if (request.ranks.empty() && group == nullptr) return std::vector<Rank>();
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  // A group's ranks were sorted and checked when it was registered.
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
      return InvalidArgumentError(absl::StrCat(
          title, ": participant ", ranks[i].value(),
          " is outside of world size ", size, " (ranks 0 to ", size - 1, ")"));
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) {
      return InvalidArgumentError(absl::StrCat(
          title, ": participant ", ranks[i].value(), " is listed twice"));
    }
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), request.rank)) {
    return InvalidArgumentError(absl::StrCat(
        title, ": rank ", request.rank.value(),
        " is not among the participants ", ParticipantsText(ranks)));
  }
  if (group != nullptr && ranks != *group) {
    return InvalidArgumentError(absl::StrCat(
        title, ": ", RankText(request.rank), " expects ",
        ParticipantsText(ranks), ", the group was registered with ",
        ParticipantsText(*group)));
  }
  if (static_cast<int32_t>(ranks.size()) == size) ranks.clear();
  return ranks;
}

// Records, for a restart.

namespace {

// The reason why the holder of `seat` cannot arrive any more, according to its
// member after a restart; none: it can.
std::optional<std::pair<MissingCause, std::string>> FindDeparture(
    const Seat& seat, const Member* member) {
  if (member == nullptr) {
    return std::pair(MissingCause::kLost, std::string("departed long ago"));
  }
  if (member->incarnation != seat.incarnation) {
    return std::pair(
        MissingCause::kReplaced,
        absl::StrCat("replaced by incarnation ", member->incarnation.value(),
                     " on ", member->registration.host, ", pid ",
                     member->registration.pid));
  }
  switch (member->state) {
    case MemberState::kAlive:
    case MemberState::kDisconnected:
      return std::nullopt;
    case MemberState::kLost:
      return std::pair(MissingCause::kLost, member->cause);
    case MemberState::kFailed:
      return std::pair(MissingCause::kFailed, member->cause);
    case MemberState::kLeft:
      break;
  }
  return std::pair(MissingCause::kLeft, member->cause);
}

}  // namespace

// Records that the rank asks for an instance that is decided.
void BarrierTable::Take(Series& series, Rank rank, int64_t number) {
  series.taken[rank] = number;
  if (!journal_.on()) return;
  series.apart.insert(rank);
  journal_.Taken(series.key.first, series.key.second, rank);
}

// Marks the whole series for writing.
void BarrierTable::JournalSeries(Series& series) {
  const auto& [group, barrier] = series.key;
  journal_.Series(group, barrier);
  for (const Rank rank : series.apart) journal_.Taken(group, barrier, rank);
  series.apart.clear();
}

void BarrierTable::JournalDecision(const Series& series, Instance& instance) {
  instance.unwritten =
      journal_.Decision(series.key.first, series.key.second, instance.number);
}

// Leaves no trace of a decision that was not needed beyond its step, such as
// that of a barrier that all ranks reached.
void BarrierTable::JournalForgotten(const Series& series,
                                    const Instance& instance) {
  const auto& [group, barrier] = series.key;
  if (instance.unwritten &&
      journal_.ForgetDecision(group, barrier, instance.number)) {
    return;
  }
  journal_.Decision(group, barrier, instance.number);
}

SeriesRecord BarrierTable::MakeRecord(const std::string& group,
                                      const std::string& barrier) const {
  SeriesRecord record;
  record.group = group;
  record.barrier = barrier;
  const auto found = series_.find(Key(group, barrier));
  if (found == series_.end()) {
    record.erased = true;
    return record;
  }
  const Series& series = *found->second;
  record.participants = series.participants;
  record.founder = series.founder;
  record.dropped_results = series.dropped_results;
  record.newest = series.newest;
  absl::btree_map<Rank, int64_t> taken = series.taken;
  for (auto it = series.instances.rbegin(); it != series.instances.rend();
       ++it) {
    const Instance& instance = it->second;
    if (instance.decided()) continue;
    // Undecided arrivals are not recorded.
    if (instance.number == record.newest) --record.newest;
    for (const auto& [rank, waiter] : instance.arrived) --taken[rank];
  }
  record.taken.assign(taken.begin(), taken.end());
  record.erased = record.newest == 0;
  return record;
}

DecisionRecord BarrierTable::MakeRecord(const std::string& group,
                                        const std::string& barrier,
                                        int64_t instance) const {
  DecisionRecord record;
  record.group = group;
  record.barrier = barrier;
  record.instance = instance;
  record.erased = true;
  const auto found = series_.find(Key(group, barrier));
  if (found == series_.end()) return record;
  const auto it = found->second->instances.find(instance);
  if (it == found->second->instances.end() || !it->second.decided()) {
    return record;
  }
  record.erased = false;
  record.status = it->second.status;
  record.result = it->second.result;
  return record;
}

TakenRecord BarrierTable::MakeRecord(const std::string& group,
                                     const std::string& barrier,
                                     Rank rank) const {
  TakenRecord record;
  record.group = group;
  record.barrier = barrier;
  record.rank = rank;
  record.erased = true;
  const auto found = series_.find(Key(group, barrier));
  if (found == series_.end() || !found->second->apart.contains(rank)) {
    return record;
  }
  record.erased = false;
  record.instance = found->second->taken.at(rank);
  for (const auto& [number, instance] : found->second->instances) {
    if (!instance.decided() && instance.arrived.contains(rank)) {
      --record.instance;
    }
  }
  return record;
}

void BarrierTable::RestoreFormation(FormationReply formation) {
  formation_ = std::move(formation);
  if (formation_ == nullptr) return;
  for (size_t i = 0; i < formation_->world.size(); ++i) {
    const Seat& seat = formation_->world[i];
    auto departure = FindDeparture(seat, membership_.Find(seat.member));
    if (!departure.has_value()) continue;
    gone_.emplace(Rank(static_cast<int32_t>(i)),
                  Departure{departure->first, std::move(departure->second)});
  }
}

void BarrierTable::Restore(SeriesRecord record) {
  Key key(std::move(record.group), std::move(record.barrier));
  auto series = std::make_unique<Series>();
  series->key = key;
  series->participants = std::move(record.participants);
  series->founder = record.founder;
  series->newest = record.newest;
  series->dropped_results = record.dropped_results;
  series->taken.insert(record.taken.begin(), record.taken.end());
  series->gone = CountGone(*series);
  series->used_at = ++calls_;
  Relist(*series);
  series_[std::move(key)] = std::move(series);
}

void BarrierTable::Restore(DecisionRecord record) {
  const auto found = series_.find(Key(record.group, record.barrier));
  if (found == series_.end()) return;
  Series& series = *found->second;
  Instance& instance = series.instances[record.instance];
  instance.number = record.instance;
  instance.first = record.result->first_to_arrive;
  instance.status = std::move(record.status);
  instance.result = std::move(record.result);
  Keep(series, instance);
  Relist(series);
}

void BarrierTable::Restore(const TakenRecord& record) {
  const auto found = series_.find(Key(record.group, record.barrier));
  if (found == series_.end()) return;
  int64_t& taken = found->second->taken[record.rank];
  taken = std::max(taken, record.instance);
  found->second->apart.insert(record.rank);
}

// Descriptions and snapshots for people, and invariants.

std::vector<MissingRank> BarrierTable::Missing(const Series& series,
                                               const Instance& instance,
                                               Instant now, size_t count_max,
                                               RankRanges* others) const {
  // If there are more ranks than a text names, the ranks to blame come first.
  std::vector<Rank> ranks;
  std::vector<Rank> late;
  std::vector<Rank> all;
  const size_t gone_max = std::min(count_max, static_cast<size_t>(series.gone));
  const int32_t expected = Expected(series);
  auto arrived = instance.arrived.begin();
  for (int32_t i = 0; i < expected; ++i) {
    if (others == nullptr && ranks.size() == gone_max &&
        ranks.size() + late.size() >= count_max) {
      break;
    }
    const Rank rank = ParticipantAt(series, i);
    if (arrived != instance.arrived.end() && arrived->first == rank) {
      ++arrived;
      continue;
    }
    if (others != nullptr) all.push_back(rank);
    std::vector<Rank>& list = gone_.contains(rank) ? ranks : late;
    if (list.size() < count_max) list.push_back(rank);
  }
  ranks.insert(ranks.end(), late.begin(), late.end());
  if (ranks.size() <= kRanksInTextMax) std::sort(ranks.begin(), ranks.end());
  ranks.resize(std::min(ranks.size(), count_max));

  std::vector<MissingRank> missing;
  size_t bytes = 0;
  for (const Rank rank : ranks) {
    if (bytes > kMissingInResultBytes) break;
    missing.push_back(DescribeMissing(series, rank, now));
    bytes += CountBytes(missing.back());
  }
  if (others != nullptr) {
    const absl::flat_hash_set<Rank> described(
        ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(missing.size()));
    std::erase_if(all, [&](Rank rank) { return described.contains(rank); });
    *others = ToRanges(all);
  }
  return missing;
}

MissingRank BarrierTable::DescribeMissing(const Series& series, Rank rank,
                                          Instant now) const {
  const Seat& seat = formation_->world[rank.value()];
  MissingRank missing;
  missing.rank = rank;
  missing.member = seat.member;
  missing.host = seat.host;
  missing.pid = seat.pid;
  if (const auto it = gone_.find(rank); it != gone_.end()) {
    missing.cause = it->second.cause;
    missing.cause_text = it->second.text;
  }
  const Member* member = membership_.Find(seat.member);
  if (member != nullptr && member->incarnation == seat.incarnation) {
    missing.last_progress =
        DescribeProgress(member->progress, now - member->progress_at,
                         /*group=*/series.key.first);
    missing.last_heard_ago = now - member->heard_at;
  }
  return missing;
}

// `4 ranks (0, 1, 2, 3)`.
std::string BarrierTable::ParticipantsText(
    const std::vector<Rank>& participants) const {
  if (!participants.empty()) {
    return RanksText(participants, participants.size());
  }
  const size_t count = formation_->world.size();
  std::vector<Rank> first;
  for (size_t i = 0; i < std::min(count, kRanksInTextMax); ++i) {
    first.emplace_back(static_cast<int32_t>(i));
  }
  return RanksText(first, count);
}

// `rank 2 (trainer-2, pid 7)`.
std::string BarrierTable::RankText(Rank rank) const {
  const Seat& seat = formation_->world[rank.value()];
  return absl::StrCat("rank ", rank.value(), " (", seat.host, ", pid ",
                      seat.pid, ")");
}

std::vector<BarrierSnapshot> BarrierTable::Snapshot(Instant now) const {
  std::vector<BarrierSnapshot> snapshots;
  int64_t ranks = 0;
  for (const auto& [deadline, place] : deadlines_) {
    if (snapshots.size() == kBarriersInSnapshotMax) break;
    const Series& series = *series_.at(place.first);
    const Instance& instance = series.instances.at(place.second);
    BarrierSnapshot snapshot;
    snapshot.group = series.key.first;
    snapshot.barrier = series.key.second;
    snapshot.instance = instance.number;
    snapshot.expected = Expected(series);
    snapshot.arrived = static_cast<int32_t>(instance.arrived.size());
    snapshot.wait_all_ranks = instance.wait_all_ranks;
    snapshot.open_for = now - instance.first_at;
    snapshot.remaining = std::max(deadline - now, Duration::zero());
    snapshot.missing =
        Missing(series, instance, now, kMissingInSnapshotMax,
                ranks < kRanksInSnapshotMax ? &snapshot.others : nullptr);
    ranks += snapshot.expected;
    snapshots.push_back(std::move(snapshot));
  }
  return snapshots;
}

Status BarrierTable::CheckInvariants() const {
  size_t open = 0;
  size_t waiting = 0;
  size_t decided = 0;
  int64_t decision_bytes = 0;
  size_t idle = 0;
  for (const auto& [key, series] : series_) {
    if (series->gone != CountGone(*series)) {
      return InternalError(absl::StrCat(
          BarrierTitle(key.first, key.second, series->newest), ": counts ",
          series->gone, " participants that are gone, not ",
          CountGone(*series)));
    }
    if (series->instances.empty() && !series->dropped_results) ++idle;
    for (const auto& [rank, taken] : series->taken) {
      if (gone_.contains(rank)) continue;
      if (taken > series->newest || taken < 0) {
        return InternalError(
            absl::StrCat(BarrierTitle(key.first, key.second, series->newest),
                         ": rank ", rank.value(), " is at #", taken));
      }
    }
    for (const auto& [number, instance] : series->instances) {
      if (instance.decided()) {
        int32_t from = 0;
        if (AllPast(*series, number, from)) {
          return InternalError(
              absl::StrCat(BarrierTitle(key.first, key.second, number),
                           " is kept for nobody"));
        }
        ++decided;
        decision_bytes += instance.bytes;
        continue;
      }
      ++open;
      waiting += instance.arrived.size();
      if (static_cast<int32_t>(instance.arrived.size()) >= Expected(*series) ||
          (!instance.wait_all_ranks && series->gone > 0)) {
        return InternalError(absl::StrCat(
            BarrierTitle(key.first, key.second, number), " should be decided"));
      }
      for (const auto& [rank, waiter] : instance.arrived) {
        if (gone_.contains(rank) || !waiting_ranks_.contains(waiter)) {
          return InternalError(absl::StrCat(
              BarrierTitle(key.first, key.second, number), ": arrival of rank ",
              rank.value(), " without a live caller"));
        }
      }
    }
  }
  if (open != deadlines_.size() || waiting != waiting_ranks_.size()) {
    return InternalError(absl::StrCat(
        "barriers: ", open, " open, ", deadlines_.size(), " deadlines; ",
        waiting, " arrivals, ", waiting_ranks_.size(), " waiters"));
  }
  if (idle != idle_.size()) {
    return InternalError(absl::StrCat("barriers: ", idle, " are idle, ",
                                      idle_.size(), " are listed"));
  }
  if (decided != decisions_.size() || decision_bytes != decision_bytes_) {
    return InternalError(absl::StrCat(
        "barriers: ", decided, " decisions of ", decision_bytes, " bytes, not ",
        decisions_.size(), " of ", decision_bytes_));
  }
  return OkStatus();
}

}  // namespace muster::coordinator::core
