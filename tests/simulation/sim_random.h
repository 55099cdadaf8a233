// The random numbers of one simulation. All random decisions use one of these,
// so that a seed reproduces a whole run.

#ifndef MUSTER_TESTS_SIMULATION_SIM_RANDOM_H_
#define MUSTER_TESTS_SIMULATION_SIM_RANDOM_H_

#include <chrono>
#include <cstdint>
#include <random>

namespace muster::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // Returns 0 to n - 1. Not std::uniform_int_distribution, whose results differ
  // between libraries.
  uint64_t Below(uint64_t n) { return engine_() % n; }

  bool Chance(double probability) {
    return static_cast<double>(Below(1000000)) < probability * 1e6;
  }

  // Returns whole milliseconds, both ends included.
  std::chrono::milliseconds Between(int64_t least_ms, int64_t most_ms) {
    return std::chrono::milliseconds(
        least_ms + static_cast<int64_t>(
                       Below(static_cast<uint64_t>(most_ms - least_ms + 1))));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace muster::simulation

#endif  // MUSTER_TESTS_SIMULATION_SIM_RANDOM_H_
