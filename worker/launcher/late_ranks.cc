#include "worker/launcher/late_ranks.h"

#include <algorithm>
#include <utility>

namespace muster::worker {

LateRanks::Decision LateRanks::Decide(const std::vector<int>& missing,
                                      Instant now) {
  std::map<int, Instant> since;
  Decision decision;
  for (const int rank : missing) {
    const auto before = missing_since_.find(rank);
    since[rank] = before == missing_since_.end() ? now : before->second;
    // Others may have waited less long for a restarted process.
    const Duration waited = now - std::max(since[rank], started_[rank]);
    if (hang_timeout_.count() > 0 && waited >= hang_timeout_) {
      decision.kill.push_back({rank, waited});
    } else if (waited >= kTellAfter) {
      decision.tell.push_back({rank, waited});
    }
  }
  missing_since_ = std::move(since);
  if (missing.empty()) tell_at_.reset();
  if (decision.tell.empty()) return decision;
  if (tell_at_.has_value() && now < *tell_at_) {
    decision.tell.clear();
    return decision;
  }
  pause_ = tell_at_.has_value() ? std::min<Duration>(2 * pause_, kPauseMax)
                                : kPauseMin;
  tell_at_ = now + pause_;
  return decision;
}

bool LateRanks::TellThatNoneCame(Instant now) {
  if (hang_timeout_.count() == 0 || told_that_none_came_ || started_.empty()) {
    return false;
  }
  const auto last = std::max_element(
      started_.begin(), started_.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  told_that_none_came_ = now - last->second >= kTellAfter;
  return told_that_none_came_;
}

}  // namespace muster::worker
