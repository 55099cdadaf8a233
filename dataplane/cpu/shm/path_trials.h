// Measures at run time which of two ways to do the same thing is faster.

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

// Uses the usual way and tries the other one now and then. While the other one
// is faster, it uses that and tries the usual one. Which one is faster can
// change at any time in a virtual machine whose processors the host moves.
class PathTrials {
 public:
  enum class Path : uint8_t { kDefault, kAlternative };

  // Amounts are bytes, or whatever is counted.
  struct Terms {
    // The other way is tried after the first so much, then after twice as much
    // each time, up to every so much; and so again after a change of ways, if
    // the last time that was so is as long ago.
    size_t first = 0;
    size_t period = 0;
    // How much a trial is.
    size_t length = 1;
    // So many times that Took is told after a change of ways do not count: of
    // what still finds things as the other way has left them.
    int settling = 0;
    // Of so many times of a way, kTimesMax at the most, the least counts: the
    // others may be those of whoever had the processor meanwhile, or was waited
    // for.
    int remembered = 2;
    // So many hundredths of its time the usual way must take to be left.
    int slower_percent = 100;
  };

  explicit PathTrials(const Terms& terms)
      : terms_(terms), interval_(terms.first), until_trial_(terms.first) {
    CHECK(terms.remembered > 0 && terms.remembered <= kTimesMax)
        << terms.remembered;
  }

  // Both ways are known: way() is the faster one.
  bool has_found() const {
    return times_[0].known != 0 && times_[1].known != 0;
  }
  // Goes the other way at first, which was found faster of something like it.
  // The usual one is tried after kLater times as much as the other one would
  // have been: what is alike mostly goes alike. Before the first Next.
  void StartWithOther() {
    path_ = told_ = Path::kAlternative;
    interval_ = until_trial_ = std::min(kLater * terms_.first, terms_.period);
  }
  static constexpr size_t kLater = 8;

  // Which way to go with what comes next, when so much, in what the terms are,
  // has been done since the last call. Took is told how long so much of it
  // took, in whatever times grow with.
  Path Next(size_t amount);
  void Took(Path way, size_t amount, std::chrono::nanoseconds time);

  // What is tried apart.
  Path way() const { return path_; }

 private:
  static constexpr int kTimesMax = 4;
  // In nanoseconds, of an amount of one, the last ones. (What is waited for may
  // take half an hour: the product of whole numbers would not hold it.)
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
  // From one trial to the next, and what is left of it.
  size_t interval_;
  size_t until_trial_;
  // Since intervals were last the first ones.
  size_t since_restart_ = 0;
  // Of the trial that is on; and which way that tries.
  size_t left_of_trial_ = 0;
  Path tried_ = Path::kAlternative;
  std::array<Times, 2> times_ = {};
  // What Took was last told of, and how many times that does not count yet.
  Path told_ = Path::kDefault;
  int unsettled_ = 0;
};

// Those of some classes of sizes.
class TrialsBySize {
 public:
  TrialsBySize(const PathTrials::Terms& terms, size_t classes)
      : classes_(classes, {PathTrials(terms)}) {}

  // One that begins goes as the next smaller one that has found out.
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
