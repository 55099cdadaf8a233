// Measures how the flood of one job slows another job of the same coordinator.

#ifndef MUSTER_TESTS_BENCH_FAIRNESS_H_
#define MUSTER_TESTS_BENCH_FAIRNESS_H_

#include <chrono>
#include <string>
#include <vector>

#include "tests/bench/figure.h"

namespace muster::bench {

struct FairnessOptions {
  std::string self{};         // a program that calls Flood for --flood=KIND
  std::string flood{};        // list, watch, multiset or set
  std::string flooded{};      // address of the flooded coordinator
  std::string undisturbed{};  // address of another one on the same machine
  int rounds = 3;
  std::chrono::milliseconds round{0};
  int keys = 100'000;  // to list
};

// One job floods a coordinator from another process. Meanwhile a caller of
// another job sets a key every millisecond, alternately in the same coordinator
// and in one that nobody else uses. The flood takes processor time from both
// alike, so the coordinator causes the difference between them.
std::vector<Figure> MeasureFairness(const FairnessOptions& options);

// Runs in the flooding process: floods until it is killed. Prints a line when
// the flood has begun and, for each line that it reads, the number of steps so
// far. `what` is `FLOOD;ADDRESS;KEYS`.
void Flood(const std::string& what);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_FAIRNESS_H_
