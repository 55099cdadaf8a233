#ifndef MUSTER_WORKER_BENCH_OPTIONS_H_
#define MUSTER_WORKER_BENCH_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "muster/base/status.h"
#include "muster/muster.hpp"
#include "worker/bench/operation.h"

namespace muster::worker::bench {

// How the ranks' times are combined.
enum class Average { kRank0 = 0, kMean = 1, kMin = 2, kMax = 3 };

// The options of muster-bench.
struct BenchOptions {
  // Only print BenchHelpText() or the version. The other options are unset.
  bool help = false;
  bool version = false;

  std::vector<const Operation*> operations;

  // How many ranks to start; 0: a launcher started this process as a rank.
  int nproc = 0;

  // The device of the tensors. With kCuda each rank has a device, by
  // LOCAL_RANK.
  DeviceType device = DeviceType::kCpu;

  // Sizes in bytes, as nccl-tests counts them. The next size is larger by
  // `step_bytes`, or, if that is 0, by the factor `step_factor`.
  int64_t bytes_min = 0;
  int64_t bytes_max = 0;
  int64_t step_bytes = 0;
  int64_t step_factor = 0;

  // Calls per cycle; 0: as many as take 20 ms.
  int iters = 0;
  int warmup_iters = 0;
  int run_cycles = 0;
  int agg_iters = 1;
  Average average = Average::kMax;
  bool check = true;
  bool blocking = true;
  // Measures the time to enqueue calls on the stream instead of their duration.
  bool report_cputime = false;
  bool report_timestamps = false;
  bool memory_report = false;

  std::vector<DataType> data_types;
  std::vector<ReduceOp> reduce_ops;
  // With all_types or all_ops, combinations that do not exist are skipped.
  bool all_types = false;
  bool all_ops = false;
  int root = 0;
  // Uses each rank as root, one after the other.
  bool all_roots = false;
  bool out_of_place = true;
  bool in_place = true;

  // Whether the tensors are in symmetric memory.
  bool is_symmetric = false;

  // Whether the collectives are prepared.
  bool is_prepared = false;

  // For nccl.
  std::optional<NcclOptions::CtaPolicy> cta_policy = std::nullopt;

  std::string backend;
  // The group's backend. On devices it includes gloo for CPU tensors, with
  // which ranks exchange times and results.
  std::string BackendSpec() const;
  // Commands of programs to measure beside this one.
  std::vector<std::string> peers;
  std::string json;
  // Measures all algorithms of each operation, and prints a table of the
  // fastest.
  std::string tune;
  std::chrono::milliseconds timeout{0};
};

// Parses `arguments`, argv without argv[0]. Options that are not in it come
// from MUSTER_BENCH_<OPTION> in `environment`.
// Errors: INVALID_ARGUMENT; the text names the option and its value.
StatusOr<BenchOptions> ParseBenchOptions(
    const std::vector<std::string>& arguments,
    const base::Environment& environment);

// Every option with its meaning, unit and default.
std::string BenchHelpText();

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_OPTIONS_H_
