#include "dataplane/cpu/shm/path_trials.h"

#include <algorithm>

namespace muster::dataplane::shm {

PathTrials::Path PathTrials::Next(size_t amount) {
  since_restart_ += amount;
  if (left_of_trial_ == 0) {
    if (amount < until_trial_) {
      until_trial_ -= amount;
      return path_;
    }
    interval_ = std::min(2 * interval_, terms_.period);
    until_trial_ = interval_;
    left_of_trial_ = terms_.length;
    tried_ = path_ == Path::kAlternative ? Path::kDefault : Path::kAlternative;
  }
  left_of_trial_ -= std::min(amount, left_of_trial_);
  return tried_;
}

void PathTrials::Took(Path way, size_t amount, std::chrono::nanoseconds time) {
  if (way != told_) {
    told_ = way;
    unsettled_ = terms_.settling;
  }
  if (unsettled_ > 0) {
    --unsettled_;
    return;
  }
  times_[static_cast<size_t>(way)].Add(
      static_cast<double>(time.count()) / static_cast<double>(amount),
      terms_.remembered);
  const Times& usual = times_[static_cast<size_t>(Path::kDefault)];
  const Times& other = times_[static_cast<size_t>(Path::kAlternative)];
  if (usual.known == 0 || other.known == 0) return;
  const Path faster =
      usual.Least() * 100 > terms_.slower_percent * other.Least()
          ? Path::kAlternative
          : Path::kDefault;
  if (faster == path_) return;
  path_ = faster;
  // The path that is left may be slow for a short time only, so trials restart.
  // But if paths change often, trials must not take much.
  if (since_restart_ < terms_.period) return;
  since_restart_ = 0;
  interval_ = until_trial_ = terms_.first;
}

PathTrials& TrialsBySize::Of(size_t size_class) {
  DCHECK_LT(size_class, classes_.size());
  Class& wanted = classes_[size_class];
  if (wanted.has_begun) return wanted.trials;
  wanted.has_begun = true;
  for (size_t smaller = size_class; smaller-- > 0;) {
    const PathTrials& trials = classes_[smaller].trials;
    if (!trials.has_found()) continue;
    if (trials.way() == PathTrials::Path::kAlternative)
      wanted.trials.StartWithOther();
    break;
  }
  return wanted.trials;
}

void PathTrials::Times::Add(double time, int remembered) {
  last[next] = time;
  next = (next + 1) % remembered;
  known = std::min(known + 1, remembered);
}

}  // namespace muster::dataplane::shm
