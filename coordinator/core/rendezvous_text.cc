// What the rendezvous says to people.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "coordinator/core/rendezvous.h"

namespace muster::coordinator::core {
namespace {

const std::vector<Seat> kNobody;

}  // namespace

// `member "b" (host-b, pid 7)`.
std::string Rendezvous::Claimant(const MemberId& id) const {
  const Member* member = membership_.Find(id);
  if (member == nullptr)
    return absl::StrCat("member ", base::Quote(id.value()));
  return absl::StrCat("member ", base::Quote(id.value()), " (",
                      member->registration.host, ", pid ",
                      member->registration.pid, ")");
}

// Who holds `rank` in the running generation.
const Seat* Rendezvous::LiveHolder(Rank rank) const {
  if (!running_ ||
      rank.value() >= static_cast<int32_t>(formation_->world.size())) {
    return nullptr;
  }
  const Seat& seat = formation_->world[rank.value()];
  const Member* member = membership_.Find(seat.member);
  if (member == nullptr || member->incarnation != seat.incarnation ||
      !member->live()) {
    return nullptr;
  }
  return &seat;
}

// `4`, or `2 to 4 (last call 30s)`.
std::string Rendezvous::Text(const Terms& terms) {
  if (!terms.elastic) return absl::StrCat(terms.max);
  return absl::StrCat(terms.min, " to ", terms.max, " (last call ",
                      FormatDuration(terms.last_call), ")");
}

// `2 (last held by "c" on host-c, lost: no heartbeat for 11s (lease 10s))`.
std::string Rendezvous::DescribeMissing(Rank rank, Instant now) const {
  std::string text = absl::StrCat(rank.value());
  if (formation_ == nullptr ||
      rank.value() >= static_cast<int32_t>(formation_->world.size())) {
    return text;
  }
  const Seat& seat = formation_->world[rank.value()];
  absl::StrAppend(&text, " (last held by ", base::Quote(seat.member.value()),
                  " on ", seat.host);
  const Member* member = membership_.Find(seat.member);
  if (member != nullptr && member->incarnation == seat.incarnation) {
    absl::StrAppend(&text, ", ", MemberStateName(member->state));
    if (member->live()) {
      absl::StrAppend(&text, ", last heard ",
                      FormatDuration(now - member->heard_at), " ago");
    } else {
      absl::StrAppend(&text, ": ", base::Printable(member->cause));
    }
  }
  absl::StrAppend(&text, ")");
  return text;
}

std::string Rendezvous::Waiting(Instant now) const {
  if (joins_.empty()) return "";
  // Before the end of the running generation: the one that came first.
  const Instant since =
      open_since_.value_or(joins_.at(queue_.begin()->second).joined_at);
  return WaitingText(now - since, now);
}

std::vector<MemberId> Rendezvous::FirstWaiters(size_t count_max) const {
  std::vector<MemberId> members;
  for (const auto& [member, join] : joins_) {
    if (members.size() == count_max) break;
    members.push_back(member);
  }
  return members;
}

std::vector<Rank> Rendezvous::FirstMissing(size_t count_max) const {
  if (terms_.elastic || joins_.empty()) return {};
  std::vector<Rank> missing = MissingRanks();
  if (missing.size() > count_max) missing.resize(count_max);
  return missing;
}

std::vector<Rank> Rendezvous::MissingOf(Rank first, int32_t count) const {
  if (terms_.elastic || claims_.empty() || claims_.size() < joins_.size()) {
    return {};
  }
  std::vector<Rank> missing;
  const int64_t end =
      std::min<int64_t>(int64_t{first.value()} + count, terms_.max);
  for (int64_t i = std::max(first.value(), 0); i < end; ++i) {
    const Rank rank(static_cast<int32_t>(i));
    if (!claims_.contains(rank) && !gave_up_.contains(rank)) {
      missing.push_back(rank);
    }
  }
  return missing;
}

// Of a static rendezvous, ascending.
std::vector<Rank> Rendezvous::MissingRanks() const {
  // Members that do not ask for a rank would get the lowest free ones.
  size_t unassigned = joins_.size() - claims_.size();
  std::vector<Rank> missing;
  for (int32_t i = 0; i < terms_.max; ++i) {
    if (claims_.contains(Rank(i)) || gave_up_.contains(Rank(i))) continue;
    if (unassigned > 0) {
      --unassigned;
    } else {
      missing.push_back(Rank(i));
    }
  }
  return missing;
}

AbsenceReply Rendezvous::Absent() const {
  if (terms_.elastic) return nullptr;
  const std::vector<Rank> missing = MissingRanks();
  const auto& world = formation_ == nullptr ? kNobody : formation_->world;
  auto absence = std::make_shared<Absence>();
  const size_t described = std::min(missing.size(), kMissingInResultMax);
  for (size_t i = 0; i < described; ++i) {
    AbsentRank absent;
    absent.rank = missing[i];
    if (missing[i].value() < static_cast<int32_t>(world.size())) {
      const Seat& seat = world[missing[i].value()];
      absent.member = seat.member;
      absent.host = seat.host;
      absent.pid = seat.pid;
      const Member* member = membership_.Find(seat.member);
      if (member != nullptr && member->incarnation == seat.incarnation) {
        absent.cause = member->cause;
      }
    }
    absence->described.push_back(std::move(absent));
  }
  absence->others =
      RangesOf(std::vector<Rank>(missing.begin() + described, missing.end()));
  return absence;
}

// `rendezvous: 2 of 3 ranks joined in 8.9s; missing rank 2; gave up before:
// 1 (member "b" (host-b, pid 7))`.
std::string Rendezvous::WaitingText(Duration waited, Instant now) const {
  if (terms_.elastic) return ElasticWaitingText(waited, now);
  const int32_t world_size = terms_.max;
  const size_t came = std::min(joins_.size() + gave_up_.size(),
                               static_cast<size_t>(world_size));
  std::string text = absl::StrCat("rendezvous: ", came, " of ", world_size,
                                  " ranks joined in ", FormatDuration(waited));
  const std::vector<Rank> missing = MissingRanks();
  size_t named = 0;
  for (; named < std::min(missing.size(), kRanksInTextMax); ++named) {
    const absl::string_view label =
        missing.size() == 1 ? "; missing rank " : "; missing ranks ";
    absl::StrAppend(&text, named == 0 ? label : ", ",
                    DescribeMissing(missing[named], now));
  }
  if (missing.size() > named) {
    absl::StrAppend(&text, " and ", missing.size() - named, " more");
  }
  named = 0;
  for (const auto& [rank, member] : gave_up_) {
    if (named == kRanksInTextMax) break;
    absl::StrAppend(&text, named++ == 0 ? "; gave up before: " : ", ",
                    rank.value(), " (", Claimant(member), ")");
  }
  if (gave_up_.size() > named) {
    absl::StrAppend(&text, " and ", gave_up_.size() - named, " more");
  }
  return text;
}

// `rendezvous: 1 of at least 2 members joined in 30s; missing ranks of
// generation 3: 1 (last held by "b" on host-b, failed: SIGSEGV)`.
std::string Rendezvous::ElasticWaitingText(Duration waited, Instant now) const {
  const auto& world = formation_ == nullptr ? kNobody : formation_->world;
  if (Held()) {
    const std::string runs = absl::StrCat("rendezvous: no seat became free in ",
                                          FormatDuration(waited), ": ");
    if (static_cast<int32_t>(world.size()) >= terms_.max) {
      return absl::StrCat(runs, "the world of ", world.size(),
                          " is full (generation ", generation().value(),
                          " runs)");
    }
    return absl::StrCat(runs, "generation ", generation().value(),
                        " runs with a world of ", world.size(), " (at most ",
                        terms_.max, "), and none of its members joined again");
  }
  std::string text =
      absl::StrCat("rendezvous: ", joins_.size(), " of at least ", terms_.min,
                   " members joined in ", FormatDuration(waited));
  if (last_call_end_.has_value()) {
    absl::StrAppend(
        &text, "; the last call ends in ",
        FormatDuration(std::max(*last_call_end_ - now, Duration::zero())));
  }
  size_t missing = 0;
  for (size_t i = 0; i < world.size(); ++i) {
    if (joins_.contains(world[i].member) || missing++ >= kRanksInTextMax) {
      continue;
    }
    absl::StrAppend(&text,
                    missing == 1
                        ? absl::StrCat("; missing ranks of generation ",
                                       generation().value(), ": ")
                        : ", ",
                    DescribeMissing(Rank(static_cast<int32_t>(i)), now));
  }
  if (missing > kRanksInTextMax) {
    absl::StrAppend(&text, " and ", missing - kRanksInTextMax, " more");
  }
  return text;
}

}  // namespace muster::coordinator::core
