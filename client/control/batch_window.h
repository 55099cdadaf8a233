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
  // Below this, messages of their own are as good.
  static constexpr size_t kCallersMin = 4;
  // What it takes a caller to wake up and come back, on a busy processor. All
  // together are waited for for at most so much for each.
  static constexpr std::chrono::microseconds kPerCaller{8};

  // A message has answered so many callers.
  void Woke(size_t callers, Instant now) {
    // How many come and go together; forgotten within some 20 messages.
    crowd_ = std::max(callers, crowd_ - (crowd_ + 7) / 8);
    if (crowd_ < kCallersMin) return;
    joins_ = false;
    expected_ += callers;
    until_ = now + kPerCaller * static_cast<int64_t>(expected_);
  }

  // A caller has issued an operation while so many are under way.
  void CameBack(size_t under_way, Instant now) {
    if (expected_ > 0) {
      --expected_;
    } else if (!joins_ && crowd_ >= kCallersMin && under_way >= crowd_ / 2) {
      joins_ = true;
      until_ = now + kPerCaller * static_cast<int64_t>(crowd_);
    }
  }

  // Whether it is worth while to wait for more operations until until().
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
  // The next message is waited for.
  bool joins_ = false;
  Instant until_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_BATCH_WINDOW_H_
