#include "client/control/deadline.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace muster::internal {

Deadline Deadline::After(std::chrono::milliseconds timeout, std::string name) {
  const Instant now = Clock::now();
  Deadline deadline;
  // A caller that passes the largest number for "forever" must not get a
  // deadline in the past.
  deadline.at = timeout < std::chrono::duration_cast<std::chrono::milliseconds>(
                              Instant::max() - now)
                    ? now + timeout
                    : Instant::max();
  deadline.timeout = timeout;
  deadline.name = std::move(name);
  return deadline;
}

std::chrono::milliseconds Deadline::Remaining(Instant now) const {
  if (at == Instant::max()) return timeout;
  return std::max(std::chrono::milliseconds(0),
                  std::chrono::ceil<std::chrono::milliseconds>(at - now));
}

std::string Deadline::Blame() const {
  return absl::StrCat("(timeout: ", name, ")");
}

std::string FormatDuration(std::chrono::milliseconds duration) {
  return base::FormatDuration(duration);
}

std::string FormatSince(Instant from, Instant to) {
  return FormatDuration(
      std::chrono::duration_cast<std::chrono::milliseconds>(to - from));
}

}  // namespace muster::internal
