#include "dataplane/backends/shm/way_trials.h"

#include <algorithm>

namespace muster::dataplane::shm_internal {

WayTrials::Way WayTrials::Next(size_t amount) {
  if (left_of_trial_ == 0) {
    if (amount < until_trial_) {
      until_trial_ -= amount;
      return way_;
    }
    until_trial_ = terms_.period;
    left_of_trial_ = terms_.length;
    tried_ = way_ == Way::kOther ? Way::kUsual : Way::kOther;
  }
  left_of_trial_ -= std::min(amount, left_of_trial_);
  return tried_;
}

void WayTrials::Took(Way way, size_t amount, std::chrono::nanoseconds time) {
  Times& times = times_[static_cast<size_t>(way)];
  const double of_one = static_cast<double>(time.count()) / amount;
  times.before = times.are_known ? times.last : of_one;
  times.last = of_one;
  times.are_known = true;
  const Times& usual = times_[static_cast<size_t>(Way::kUsual)];
  const Times& other = times_[static_cast<size_t>(Way::kOther)];
  if (!usual.are_known || !other.are_known) return;
  way_ = usual.Least() * 100 > terms_.slower_percent * other.Least()
             ? Way::kOther
             : Way::kUsual;
}

}  // namespace muster::dataplane::shm_internal
