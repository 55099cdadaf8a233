// How others see the table: descriptions and snapshots for people, records for
// storage, and what must always hold.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/barrier_table.h"
#include "coordinator/core/barrier_text.h"
#include "coordinator/core/progress.h"

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

std::vector<MissingRank> BarrierTable::Missing(const Series& series,
                                               const Instance& instance,
                                               Instant now,
                                               size_t count_max) const {
  std::vector<MissingRank> missing;
  const int32_t expected = Expected(series);
  auto arrived = instance.arrived.begin();
  for (int32_t i = 0; i < expected && missing.size() < count_max; ++i) {
    const Rank rank =
        series.participants.empty() ? Rank(i) : series.participants[i];
    if (arrived != instance.arrived.end() && arrived->first == rank) {
      ++arrived;
    } else {
      missing.push_back(DescribeMissing(rank, now));
    }
  }
  return missing;
}

MissingRank BarrierTable::DescribeMissing(Rank rank, Instant now) const {
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
        DescribeProgress(member->progress, now - member->progress_at);
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
    snapshot.missing = Missing(series, instance, now, kMissingInSnapshotMax);
    snapshots.push_back(std::move(snapshot));
  }
  return snapshots;
}

absl::Status BarrierTable::CheckInvariants() const {
  size_t open = 0;
  size_t waiting = 0;
  size_t decided = 0;
  int64_t decision_bytes = 0;
  for (const auto& [key, series] : series_) {
    for (const auto& [rank, taken] : series->taken) {
      if (gone_.contains(rank)) continue;
      if (taken > series->newest || taken < 0) {
        return absl::InternalError(
            absl::StrCat(BarrierTitle(key.first, key.second, series->newest),
                         ": rank ", rank.value(), " is at #", taken));
      }
    }
    for (const auto& [number, instance] : series->instances) {
      if (instance.decided()) {
        ++decided;
        decision_bytes += instance.bytes;
        continue;
      }
      ++open;
      waiting += instance.arrived.size();
      if (static_cast<int32_t>(instance.arrived.size()) >= Expected(*series) ||
          (!instance.wait_all_ranks && AnyGone(*series, instance))) {
        return absl::InternalError(absl::StrCat(
            BarrierTitle(key.first, key.second, number), " should be decided"));
      }
      for (const auto& [rank, waiter] : instance.arrived) {
        if (gone_.contains(rank) || !places_by_waiter_.contains(waiter)) {
          return absl::InternalError(absl::StrCat(
              BarrierTitle(key.first, key.second, number), ": arrival of rank ",
              rank.value(), " without a live caller"));
        }
      }
    }
  }
  if (open != deadlines_.size() || waiting != places_by_waiter_.size()) {
    return absl::InternalError(absl::StrCat(
        "barriers: ", open, " open, ", deadlines_.size(), " deadlines; ",
        waiting, " arrivals, ", places_by_waiter_.size(), " waiters"));
  }
  if (decided != decisions_.size() || decision_bytes != decision_bytes_) {
    return absl::InternalError(absl::StrCat(
        "barriers: ", decided, " decisions of ", decision_bytes, " bytes, not ",
        decisions_.size(), " of ", decision_bytes_));
  }
  return absl::OkStatus();
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
    if (instance.decided()) {
      record.decisions.push_back(
          {instance.number, instance.status, instance.result});
      continue;
    }
    // As if nobody had come yet.
    if (instance.number == record.newest) --record.newest;
    for (const auto& [rank, waiter] : instance.arrived) --taken[rank];
  }
  record.taken.assign(taken.begin(), taken.end());
  record.erased = record.newest == 0;
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
  for (SeriesRecord::Decision& decision : record.decisions) {
    Instance& instance = series->instances[decision.instance];
    instance.number = decision.instance;
    instance.first = decision.result->first_to_arrive;
    instance.status = std::move(decision.status);
    instance.result = std::move(decision.result);
    Keep(*series, instance);
  }
  series_[std::move(key)] = std::move(series);
}

}  // namespace muster::coordinator::core
