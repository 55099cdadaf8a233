// Measures at run time which of two paths for the same work is faster.

#ifndef MUSTER_DATAPLANE_CPU_SHM_PATH_TRIALS_H_
#define MUSTER_DATAPLANE_CPU_SHM_PATH_TRIALS_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "glog/logging.h"

namespace muster::dataplane::shm {

// Uses the default path and tries the alternative now and then. While the
// alternative is faster, it uses that and tries the default. Which is faster
// can change at any time in a virtual machine whose processors the host moves.
class PathTrials {
 public:
  enum class Path : uint8_t { kDefault, kAlternative };

  // Amounts are bytes or another count.
  struct Terms {
    // The other path is tried after the amount `first`, then after twice as
    // much each time, up to `period`. A change of path restarts this, at most
    // once per `period`.
    size_t first = 0;
    size_t period = 0;
    // The amount of a trial.
    size_t length = 1;
    // So many times given to Took after a change of path do not count: caches
    // are still as the other path has left them.
    int settling = 0;
    // The least of so many last times of a path counts, at most kTimesMax:
    // longer ones may include other threads' work, or waits.
    int remembered = 2;
    // The default is left if it takes more than this percentage of the
    // alternative's time.
    int slower_percent = 100;
  };

  explicit PathTrials(const Terms& terms)
      : terms_(terms), interval_(terms.first), until_trial_(terms.first) {
    CHECK(terms.remembered > 0 && terms.remembered <= kTimesMax)
        << terms.remembered;
  }

  // Whether both paths are measured, so that way() is the faster one.
  bool has_found() const {
    return times_[0].known != 0 && times_[1].known != 0;
  }
  // Starts with the alternative, which was faster for similar work. Tries the
  // default after kLater times the usual amount, because similar work mostly
  // has the same faster path. Call it before the first Next.
  void StartWithOther() {
    path_ = told_ = Path::kAlternative;
    interval_ = until_trial_ = std::min(kLater * terms_.first, terms_.period);
  }
  static constexpr size_t kLater = 8;

  // The path for the next work; `amount` of work was done since the last call.
  // Took records the time of `amount` of work on a path. Took may count amounts
  // in another unit.
  Path Next(size_t amount);
  void Took(Path way, size_t amount, std::chrono::nanoseconds time);

  // The path in use, apart from trials.
  Path way() const { return path_; }

 private:
  static constexpr int kTimesMax = 4;
  // The last times, in nanoseconds per unit. (A wait may take half an hour, for
  // which a product of integers would overflow.)
  struct Times {
    std::array<double, kTimesMax> last = {};
    int known = 0;
    int next = 0;
    void Add(double time, int remembered);
    double Least() const {
      return *std::min_element(last.begin(), last.begin() + known);
    }
  };

  Terms terms_;
  Path path_ = Path::kDefault;
  // The amount from one trial to the next, and its rest.
  size_t interval_;
  size_t until_trial_;
  // The amount since the intervals last restarted.
  size_t since_restart_ = 0;
  // The rest of the current trial, and its path.
  size_t left_of_trial_ = 0;
  Path tried_ = Path::kAlternative;
  std::array<Times, 2> times_ = {};
  // The path last given to Took, and the number of its times still to ignore.
  Path told_ = Path::kDefault;
  int unsettled_ = 0;
};

// PathTrials by size class.
class TrialsBySize {
 public:
  TrialsBySize(const PathTrials::Terms& terms, size_t classes)
      : classes_(classes, {PathTrials(terms)}) {}

  // A new class starts with the path of the next smaller class that has found
  // one.
  PathTrials& Of(size_t size_class);

 private:
  struct Class {
    PathTrials trials;
    bool has_begun = false;
  };

  std::vector<Class> classes_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_PATH_TRIALS_H_
