#ifndef MUSTER_CLIENT_CONTROL_DEADLINE_H_
#define MUSTER_CLIENT_CONTROL_DEADLINE_H_

#include <chrono>
#include <string>

#include "muster/base/clock.h"

namespace muster::internal {

// The time by which a call must end, and its name in errors. One deadline
// passes from the user's call through all layers.
struct Deadline {
  // `name` is the option or variable that sets the timeout.
  static Deadline After(std::chrono::milliseconds timeout, std::string name);

  // At least zero. Rounded up, so that it is zero only after the deadline.
  std::chrono::milliseconds Remaining(Instant now) const;

  bool Passed(Instant now) const { return now >= at; }

  // Returns "(timeout: Store::SetTimeout)".
  std::string Blame() const;

  Instant at = Instant::max();
  std::chrono::milliseconds timeout{0};
  std::string name;
};

// "10s", "1.5s", "250ms".
std::string FormatDuration(std::chrono::milliseconds duration);

// The time from `from` to `to`, in the same form.
std::string FormatSince(Instant from, Instant to);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_DEADLINE_H_
