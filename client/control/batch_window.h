// Decides how long a session waits for more callers before it writes a message.

#ifndef MUSTER_CLIENT_CONTROL_BATCH_WINDOW_H_
#define MUSTER_CLIENT_CONTROL_BATCH_WINDOW_H_

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "client/control/deadline.h"

namespace muster::internal {

// A message that answers many callers wakes them all, and most of them issue
// their next operation at once. If the first one wrote a message for itself
// alone, and so on, 64 callers would share messages of 2 to 4 operations and
// pay the cost of a message 20 times per round. BatchWindow makes the first
// caller wait until all of them are back, for a time that is short compared
// with the cost of the messages saved. A caller that arrives meanwhile waits,
// too, so that they stay together.
//
// With few callers there is no wait, so a single caller is never delayed.
//
// Not thread-safe: the session's lock guards it.
class BatchWindow {
 public:
  // With fewer callers there is no wait.
  static constexpr size_t kCallersMin = 4;
  // Estimate of the time in which one caller wakes up and comes back on a busy
  // processor. The wait is at most this times the number of callers.
  static constexpr std::chrono::microseconds kPerCaller{8};

  // Call when a message has answered `callers` callers.
  void Woke(size_t callers, Instant now) {
    // Estimate of the callers that run together; decays in some 20 messages.
    crowd_ = std::max(callers, crowd_ - (crowd_ + 7) / 8);
    if (crowd_ < kCallersMin) return;
    joins_ = false;
    expected_ += callers;
    until_ = now + kPerCaller * static_cast<int64_t>(expected_);
  }

  // Call when a caller has issued an operation and `under_way` are under way.
  void CameBack(size_t under_way, Instant now) {
    if (expected_ > 0) {
      --expected_;
    } else if (!joins_ && crowd_ >= kCallersMin && under_way >= crowd_ / 2) {
      joins_ = true;
      until_ = now + kPerCaller * static_cast<int64_t>(crowd_);
    }
  }

  // Returns whether to wait for more operations until until().
  bool Expects(Instant now) {
    if (now >= until_) {
      expected_ = 0;
      joins_ = false;
    }
    return expected_ > 0 || joins_;
  }

  Instant until() const { return until_; }

 private:
  size_t crowd_ = 0;
  size_t expected_ = 0;
  // Whether the next message waits for more callers.
  bool joins_ = false;
  Instant until_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_BATCH_WINDOW_H_
