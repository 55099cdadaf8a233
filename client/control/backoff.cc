#include "client/control/backoff.h"

#include <algorithm>

namespace muster::internal {

std::chrono::milliseconds Backoff::Next() {
  std::uniform_int_distribution<int64_t> draw(ceiling_.count() / 2,
                                              ceiling_.count());
  const Microseconds delay(draw(random_));
  ceiling_ = std::min(kLast, ceiling_ * 3 / 2);
  return std::chrono::ceil<std::chrono::milliseconds>(delay);
}

}  // namespace muster::internal
