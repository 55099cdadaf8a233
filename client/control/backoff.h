#ifndef MUSTER_CLIENT_CONTROL_BACKOFF_H_
#define MUSTER_CLIENT_CONTROL_BACKOFF_H_

#include <chrono>
#include <cstdint>
#include <random>

namespace muster::internal {

// Computes the delays between attempts to reconnect. Each delay is half as long
// again as the one before, up to half a second, and is drawn from the upper
// half of its range, so that thousands of processes that lost the same
// coordinator do not return all at once. The first delay is short: the
// processes of a job start together, and the one that serves the coordinator
// may be a few milliseconds behind.
class Backoff {
 public:
  explicit Backoff(uint64_t seed) : random_(seed) {}

  std::chrono::milliseconds Next();
  void Reset() { ceiling_ = kFirst; }

 private:
  using Microseconds = std::chrono::microseconds;
  static constexpr Microseconds kFirst = std::chrono::milliseconds(6);
  static constexpr Microseconds kLast = std::chrono::milliseconds(500);

  Microseconds ceiling_ = kFirst;
  std::mt19937_64 random_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_BACKOFF_H_
