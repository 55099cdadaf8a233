// What of the table survives a restart.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/barriers.h"

namespace muster::coordinator::core {
namespace {

// Why the holder of `seat` can arrive no more, from what is known of its
// member after a restart; null when it can.
std::optional<std::pair<MissingCause, std::string>> DepartureOf(
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

// The rank comes for a decision that there is already, or was.
void BarrierTable::Take(Series& series, Rank rank, int64_t number) {
  series.taken[rank] = number;
  if (!journal_.on()) return;
  series.apart.insert(rank);
  journal_.Taken(series.key.first, series.key.second, rank);
}

// The series is to be written as a whole.
void BarrierTable::Changed(Series& series) {
  const auto& [group, barrier] = series.key;
  journal_.Series(group, barrier);
  for (const Rank rank : series.apart) journal_.Taken(group, barrier, rank);
  series.apart.clear();
}

void BarrierTable::Decided(const Series& series, Instance& instance) {
  instance.unwritten =
      journal_.Decision(series.key.first, series.key.second, instance.number);
}

// A decision that nobody needs any more by the end of its step, as that of a
// barrier that all reached, leaves no trace.
void BarrierTable::Forgotten(const Series& series, const Instance& instance) {
  const auto& [group, barrier] = series.key;
  if (instance.unwritten &&
      journal_.ForgetDecision(group, barrier, instance.number)) {
    return;
  }
  journal_.Decision(group, barrier, instance.number);
}

SeriesRecord BarrierTable::RecordOf(const std::string& group,
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
    // As if nobody had come yet.
    if (instance.number == record.newest) --record.newest;
    for (const auto& [rank, waiter] : instance.arrived) --taken[rank];
  }
  record.taken.assign(taken.begin(), taken.end());
  record.erased = record.newest == 0;
  return record;
}

DecisionRecord BarrierTable::RecordOf(const std::string& group,
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

TakenRecord BarrierTable::RecordOf(const std::string& group,
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
    auto departure = DepartureOf(seat, membership_.Find(seat.member));
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

}  // namespace muster::coordinator::core
