// How others see the table: descriptions and snapshots for people, and what
// must always hold.

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/barriers.h"
#include "coordinator/core/barrier_text.h"
#include "coordinator/core/progress.h"

namespace muster::coordinator::core {

std::vector<MissingRank> BarrierTable::Missing(const Series& series,
                                               const Instance& instance,
                                               Instant now, size_t count_max,
                                               RankRanges* others) const {
  // Of more than a text names, those that are to blame for it come first.
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
    bytes += BytesOf(missing.back());
  }
  if (others != nullptr) {
    const absl::flat_hash_set<Rank> described(
        ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(missing.size()));
    std::erase_if(all, [&](Rank rank) { return described.contains(rank); });
    *others = RangesOf(all);
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

absl::Status BarrierTable::CheckInvariants() const {
  size_t open = 0;
  size_t waiting = 0;
  size_t decided = 0;
  int64_t decision_bytes = 0;
  size_t idle = 0;
  for (const auto& [key, series] : series_) {
    if (series->gone != CountGone(*series)) {
      return absl::InternalError(absl::StrCat(
          BarrierTitle(key.first, key.second, series->newest), ": counts ",
          series->gone, " participants that are gone, not ",
          CountGone(*series)));
    }
    if (series->instances.empty() && !series->dropped_results) ++idle;
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
        int32_t from = 0;
        if (AllPast(*series, number, from)) {
          return absl::InternalError(
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
  if (idle != idle_.size()) {
    return absl::InternalError(absl::StrCat("barriers: ", idle, " are idle, ",
                                            idle_.size(), " are listed"));
  }
  if (decided != decisions_.size() || decision_bytes != decision_bytes_) {
    return absl::InternalError(absl::StrCat(
        "barriers: ", decided, " decisions of ", decision_bytes, " bytes, not ",
        decisions_.size(), " of ", decision_bytes_));
  }
  return absl::OkStatus();
}

}  // namespace muster::coordinator::core
