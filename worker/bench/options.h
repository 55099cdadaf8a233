#ifndef MUSTER_WORKER_BENCH_OPTIONS_H_
#define MUSTER_WORKER_BENCH_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/status.h"
#include "client/muster.h"
#include "worker/bench/operation.h"

namespace muster::worker::bench {

// Which of the ranks' times counts.
enum class Average { kRank0 = 0, kMean = 1, kMin = 2, kMax = 3 };

// What muster-bench was asked to do.
struct BenchOptions {
  // Only print BenchHelpText(), or the version; nothing else is set then.
  bool help = false;
  bool version = false;

  std::vector<const Operation*> operations;

  // How many ranks to start; 0: this process is one of a launcher's.
  int nproc = 0;

  // Where the tensors are. On kCuda each rank has a device, by LOCAL_RANK.
  DeviceType device = DeviceType::kCpu;

  // Sizes in bytes, as nccl-tests counts them: each is the one before plus
  // `step_bytes`, or if that is 0 times `step_factor`.
  int64_t bytes_min = 0;
  int64_t bytes_max = 0;
  int64_t step_bytes = 0;
  int64_t step_factor = 0;

  // Calls of one cycle; 0: as many as take 20 ms.
  int iters = 0;
  int warmup_iters = 0;
  int run_cycles = 0;
  int agg_iters = 1;
  Average average = Average::kMax;
  bool check = true;
  bool blocking = true;
  // Counts the time in which calls are given to the stream, and not until they
  // are done.
  bool report_cputime = false;
  bool report_timestamps = false;
  bool memory_report = false;

  std::vector<DataType> data_types;
  std::vector<ReduceOp> reduce_ops;
  // What was not asked for by its name is skipped where it does not exist.
  bool all_types = false;
  bool all_ops = false;
  int root = 0;
  // Each rank in its turn, instead.
  bool all_roots = false;
  bool out_of_place = true;
  bool in_place = true;

  // The tensors are in symmetric memory.
  bool is_symmetric = false;

  // Of nccl.
  std::optional<NcclOptions::CtaPolicy> cta_policy = std::nullopt;

  std::string backend;
  // Of the group: on devices it has gloo for CPU tensors, too, by which ranks
  // agree about times and results.
  std::string BackendSpec() const;
  // Programs that measure the same beside this one, with their arguments.
  std::vector<std::string> peers;
  std::string json;
  // Measures the algorithms of each operation, and prints a table of the
  // fastest.
  bool tune = false;
  std::chrono::milliseconds timeout{0};
};

// Reads `arguments`, argv without argv[0]; what is not there comes from
// MUSTER_BENCH_<OPTION> in `environment`.
// Errors: INVALID_ARGUMENT; the text names the option and its value.
StatusOr<BenchOptions> ParseBenchOptions(
    const std::vector<std::string>& arguments,
    const base::Environment& environment);

// Every option with its meaning, unit and default.
std::string BenchHelpText();

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_OPTIONS_H_
