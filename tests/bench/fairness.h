// What the flood of one job costs another job of the same coordinator.

#ifndef MUSTER_TESTS_BENCH_FAIRNESS_H_
#define MUSTER_TESTS_BENCH_FAIRNESS_H_

#include <chrono>
#include <string>
#include <vector>

#include "tests/bench/figure.h"

namespace muster::bench {

struct FairnessOptions {
  std::string self{};         // a program that calls Flood for --flood=WHAT
  std::string flood{};        // list, watch, multiset or set
  std::string flooded{};      // address of the coordinator that is flooded
  std::string undisturbed{};  // address of another one on the same machine
  int rounds = 3;
  std::chrono::milliseconds round{0};
  int keys = 100'000;  // that are listed
};

// One job floods a coordinator from another process while a caller of another
// job sets a key a millisecond, by turns in the same coordinator and in one
// that nobody else uses: both suffer alike from the processor time that the
// flood takes, so what they differ by is the coordinator's doing.
std::vector<Figure> MeasureFairness(const FairnessOptions& options);

// What the flooding process does: floods, prints a line when it has begun, and
// for a line that it reads how much it has done, and goes on until it is
// killed. `what` is `FLOOD;ADDRESS;KEYS`.
void Flood(const std::string& what);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_FAIRNESS_H_
