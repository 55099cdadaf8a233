#include "coordinator/core/departure_batcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/rank_ranges.h"

namespace muster::coordinator::core {
namespace {

// The event as a batch describes it.
Event Described(const Event& event) {
  Event described = event;
  described.cause = CutText(event.cause, kDepartureTextMax);
  described.last_progress = CutText(event.last_progress, kDepartureTextMax);
  return described;
}

// One event for all of `ranks`; `described` are some of them.
Event Together(const absl::btree_set<Rank>& ranks,
               std::vector<Event> described) {
  auto together = std::make_shared<LeftTogether>();
  together->count = static_cast<int32_t>(ranks.size());
  together->ranks = ToRanges(ranks);
  Event event = described.front();
  together->described = std::move(described);
  event.together = std::move(together);
  return event;
}

}  // namespace

void DepartureBatcher::Remember(const Event& event) {
  left_.insert(*event.rank);
  if (described_.size() < kDescribedDeparturesMax) {
    described_.push_back(Described(event));
  }
  all_.reset();
}

void DepartureBatcher::Add(Event event, Duration pause, Instant now) {
  if (!told_at_.has_value() || now - *told_at_ >= 2 * pause_max_) {
    pause_ = Duration::zero();
    pause_max_ = std::min(kDeparturePauseMax, kDeparturePauseGrowth * pause);
    pause_min_ = std::min(kDeparturePauseMax, pause);
  }
  if (untold_.empty()) {
    due_ = told_at_.has_value() ? std::max(now, *told_at_ + pause_) : now;
  }
  untold_.push_back(std::move(event));
}

std::optional<Event> DepartureBatcher::TakeDue(Instant now) {
  if (untold_.empty() || now < due_) return std::nullopt;
  return TakeUntold(now);
}

std::optional<Event> DepartureBatcher::TakeUntold(Instant now) {
  if (untold_.empty()) return std::nullopt;
  told_at_ = now;
  pause_ = std::clamp(2 * pause_, pause_min_, pause_max_);
  std::vector<Event> events = std::exchange(untold_, {});
  for (const Event& event : events) Remember(event);
  if (events.size() == 1) return std::move(events.front());
  absl::btree_set<Rank> ranks;
  std::vector<Event> described;
  for (const Event& event : events) {
    ranks.insert(*event.rank);
    if (described.size() < kDescribedDeparturesMax) {
      described.push_back(Described(event));
    }
  }
  return Together(ranks, std::move(described));
}

std::optional<Instant> DepartureBatcher::NextDeadline() const {
  if (untold_.empty()) return std::nullopt;
  return due_;
}

std::optional<Event> DepartureBatcher::All() {
  if (left_.empty()) return std::nullopt;
  if (!all_.has_value()) all_ = Together(left_, described_);
  return all_;
}

void DepartureBatcher::Reset() {
  left_.clear();
  described_.clear();
  all_.reset();
}

Status DepartureBatcher::CheckInvariants(Generation newest) const {
  for (const Event& event : untold_) {
    if (event.generation == newest) continue;
    return InternalError(
        absl::StrCat("departures: nobody was told that ", event.member.value(),
                     " left generation ", event.generation.value(),
                     " before generation ", newest.value(), " began"));
  }
  return OkStatus();
}

}  // namespace muster::coordinator::core
