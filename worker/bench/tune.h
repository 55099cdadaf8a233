#ifndef MUSTER_WORKER_BENCH_TUNE_H_
#define MUSTER_WORKER_BENCH_TUNE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "worker/bench/operation.h"

namespace muster::worker::bench {

// One measurement: one size with one algorithm.
struct TuneSample {
  int64_t bytes = 0;
  std::string algorithm;
  double time_us = 0;
};

// The tunable setting of a backend, gloo or shm.
struct Tunable {
  // The environment variable that selects the algorithm.
  const char* variable;
  // The values of `variable` for an operation, in symmetric memory or not.
  // Empty if there is only one algorithm.
  std::vector<std::string> (*algorithms_of)(const Operation& operation,
                                            bool is_symmetric);
};

// Returns null if the backend has nothing to tune.
const Tunable* FindTunable(const std::string& backend);

// The setting in which the samples were taken.
struct TuneSetting {
  std::string backend;
  int ranks = 0;
  int processors = 0;
  bool is_symmetric = false;
};

// The first line of a file of rows; selection.cc of the data plane, which loads
// it, has the same.
inline constexpr char kTuneHeader[] = "muster-tune 1\n";

// Makes rows for such a file (README.md). A row has the fastest algorithm for
// its sizes, or that of the size before if no other was clearly faster.
std::string TableRows(const Operation& operation, const TuneSetting& setting,
                      std::vector<TuneSample> samples);

// Reads the samples of a file that muster-bench has written, each with the
// algorithm that ran, which may differ from the requested one.
// Errors: kInvalidArgument, kFailedPrecondition (`backend` did not run).
StatusOr<std::vector<TuneSample>> ReadSamples(const std::string& file,
                                              const std::string& backend);

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_TUNE_H_
