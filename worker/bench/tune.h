#ifndef MUSTER_WORKER_BENCH_TUNE_H_
#define MUSTER_WORKER_BENCH_TUNE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/bench/operation.h"

namespace muster::worker::bench {

// One size of one algorithm.
struct TuneSample {
  int64_t bytes = 0;
  std::string algorithm;
  double time_us = 0;
};

// The names that MUSTER_GLOO_ALGORITHM may have for `operation`; none: it has
// one algorithm only.
std::vector<std::string> AlgorithmsOf(const Operation& operation);

// Rows of the gloo backend's table (dataplane/backends/gloo/selection.cc) that
// say of each size the algorithm that was fastest. `ranks` is how many there
// were.
std::string TableRows(const Operation& operation, int ranks,
                      std::vector<TuneSample> samples);

// The samples of a file that muster-bench has written. Errors:
// kInvalidArgument.
absl::StatusOr<std::vector<TuneSample>> ReadSamples(const std::string& file);

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_TUNE_H_
