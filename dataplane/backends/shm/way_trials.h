// Finds out which of two ways of doing the same is faster.

#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_WAY_TRIALS_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_WAY_TRIALS_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace muster::dataplane::shm_internal {

// Goes the usual way, tries the other one now and then, and goes that one for
// as long as it is faster, while it tries the usual one. Which is can change at
// any time in a virtual machine, whose processors its host moves.
class WayTrials {
 public:
  enum class Way : uint8_t { kUsual, kOther };

  // Amounts are bytes or whatever times grow with.
  struct Terms {
    // The other way is tried after the first so much, and again after every so
    // much.
    size_t first = 0;
    size_t period = 0;
    // How long a trial is: the first that goes a way may find caches as the
    // other way leaves them.
    size_t length = 1;
    // So many hundredths of its time the usual way must take to be left.
    int slower_percent = 100;
  };

  explicit WayTrials(const Terms& terms)
      : terms_(terms), until_trial_(terms.first) {}

  // Which way to go with what comes next, when so much has been done since the
  // last call. Took is told how long how much of it took.
  Way Next(size_t amount);
  void Took(Way way, size_t amount, std::chrono::nanoseconds time);

  // What is tried apart.
  Way way() const { return way_; }

 private:
  // In nanoseconds, of an amount of one, the last time and the one before: the
  // longer of the two may be that of whoever had the processor meanwhile. (What
  // is waited for may take half an hour: the product of whole numbers would not
  // hold it.)
  struct Times {
    double last = 0;
    double before = 0;
    bool are_known = false;
    double Least() const { return std::min(last, before); }
  };

  Terms terms_;
  Way way_ = Way::kUsual;
  size_t until_trial_;
  // Of the trial that is on; and which way that tries.
  size_t left_of_trial_ = 0;
  Way tried_ = Way::kOther;
  std::array<Times, 2> times_ = {};
};

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_WAY_TRIALS_H_
