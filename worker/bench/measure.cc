#include "worker/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "muster/base/status.h"

namespace muster::worker::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The length of a cycle if --iters is not given, and the limits of the number
// of calls.
constexpr double kCycleSeconds = 0.02;
constexpr int kCallsMin = 2;
constexpr int kCallsMax = 20'000;

double ComputeMedian(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

// Combines the ranks' times; the same on every rank.
double Together(double seconds, Average average) {
  std::vector<double> value = {seconds};
  switch (average) {
    case Average::kRank0:
      Broadcast(value, 0);
      break;
    case Average::kMean:
      AllReduce(value, {.op = ReduceOp::kAvg});
      break;
    case Average::kMin:
      AllReduce(value, {.op = ReduceOp::kMin});
      break;
    case Average::kMax:
      AllReduce(value, {.op = ReduceOp::kMax});
      break;
  }
  return value[0];
}

// Returns the seconds per call.
double Time(Trial& trial, int calls, const BenchOptions& options) {
  std::vector<Work> works;
  const auto start = Clock::now();
  if (options.blocking && options.agg_iters == 1) {
    trial.Run(calls);
  } else {
    for (int i = 0; i < calls; ++i) {
      for (int k = 0; k < options.agg_iters; ++k) {
        for (Work& work : trial.Call(/*wait=*/false)) {
          works.push_back(std::move(work));
        }
      }
      if (!options.blocking) continue;
      for (Work& work : works) work.Wait();
      trial.Synchronize();
      works.clear();
    }
  }
  std::chrono::duration<double> elapsed = Clock::now() - start;
  for (Work& work : works) work.Wait();
  trial.Synchronize();
  if (!options.report_cputime) elapsed = Clock::now() - start;
  return elapsed.count() / calls / options.agg_iters;
}

// NCCL multiplies each rank's input by 1 / n and then rounds. Integers are
// exact; float8 types are rounded on every rank,
// as by the function of the user.
int ComputeUlps(const Case& measured, const BenchOptions& options,
                int world_size) {
  const bool is_float8 = IsFloat8(measured.data_type);
  const bool is_by_nccl =
      options.device == DeviceType::kCuda && options.backend != "gloo";
  return (is_by_nccl && (measured.reduce_op == ReduceOp::kAvg || is_float8)) ||
                 (is_float8 && measured.reduce_op == ReduceOp::kUser)
             ? world_size + 1
             : 0;
}

int64_t CountWrong(Trial& trial, int ulps) {
  trial.Bring();
  trial.Call(/*wait=*/true);
  std::vector<int64_t> wrong = {trial.CountWrong(ulps)};
  AllReduce(wrong);
  return wrong[0];
}

std::unique_ptr<Trial> MakeTrial(const Case& measured, int world_size,
                                 const BenchOptions& options) {
  std::string why;
  try {
    return std::make_unique<Trial>(measured, GetRank(), world_size,
                                   ChooseDevice(options), options.is_symmetric,
                                   options.is_prepared);
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  } catch (const DistError& error) {
    if (!IsResourceExhausted(error.status())) throw;
    why = absl::StrCat(" (", error.what(), ")");
  }
  throw DistError(ResourceExhaustedError(absl::StrCat(
      "no memory for ", measured.operation->name, " of ",
      measured.Bytes(world_size), " bytes", why, "; see --maxbytes")));
}

// A program that is measured in each cycle.
struct Runner {
  // Returns the seconds per collective.
  std::function<double(int calls)> run;
  // Collectives per call.
  int together = 1;
  // Calls per cycle.
  int calls = 0;
};

// Returns the calls per cycle, the same on every rank. The first calls have
// cold caches and new pages, so it repeats them until they take a good part of
// a cycle, twice in a row: a rank may have lost its processor.
int CallsFor(const Runner& runner, const BenchOptions& options) {
  runner.run(1);
  if (options.iters > 0) return options.iters;
  int calls = kCallsMin;
  double last = 0;
  for (bool was_long = false;;) {
    const double seconds =
        std::max(Together(runner.run(calls), Average::kMax), 1e-9) *
        runner.together;
    const bool is_long =
        calls == kCallsMax || seconds * calls >= kCycleSeconds / 4;
    if (is_long && was_long) {
      return static_cast<int>(std::clamp<double>(
          kCycleSeconds / std::min(seconds, last), kCallsMin, kCallsMax));
    }
    if (!is_long) calls = std::min(4 * calls, kCallsMax);
    was_long = is_long;
    last = seconds;
  }
}

// Returns the runner of a peer that supports the case. All ranks' peers must
// agree.
std::optional<Runner> MakeRunner(Peer& peer, const Case& measured) {
  StatusOr<std::optional<double>> first = peer.Run(measured, 1);
  if (!first.ok()) throw DistError(first.status());
  if (!first->has_value()) return std::nullopt;
  return Runner{.run = [&peer, &measured](int calls) {
    StatusOr<std::optional<double>> seconds = peer.Run(measured, calls);
    if (!seconds.ok()) throw DistError(seconds.status());
    return seconds->value_or(0);
  }};
}

}  // namespace

double Figures::Min() const {
  return *std::min_element(cycles_us.begin(), cycles_us.end());
}

double Figures::Median() const { return ComputeMedian(cycles_us); }

double Figures::Max() const {
  return *std::max_element(cycles_us.begin(), cycles_us.end());
}

double Row::RatioTo(size_t index) const {
  const std::vector<double>& own = figures[0].cycles_us;
  const std::vector<double>& peers = figures[index].cycles_us;
  if (peers.empty()) return 0;
  std::vector<double> ratios;
  for (size_t i = 0; i < own.size(); ++i) ratios.push_back(own[i] / peers[i]);
  return ComputeMedian(ratios);
}

Device ChooseDevice(const BenchOptions& options) {
  const int devices = CudaDeviceCount();
  // If devices are missing, forming the group reports it.
  if (options.device == DeviceType::kCpu || devices == 0) return {};
  const int local_rank = GetNodeLocalRank(0);
  if (options.backend == "nccl" && local_rank >= devices) {
    throw DistError(InvalidArgumentError(absl::StrCat(
        "nccl needs a CUDA device for each rank of a host: this is local rank ",
        local_rank, ", there are ", devices,
        "; ranks of --backend=gloo --device=cuda can share one")));
  }
  return {DeviceType::kCuda, local_rank % devices};
}

Row Measure(const Case& measured, const BenchOptions& options,
            const std::vector<std::unique_ptr<Peer>>& peers) {
  Row row = {.measured = measured,
             .world_size = GetWorldSize(),
             .device = options.device};
  const std::unique_ptr<Trial> owned =
      MakeTrial(measured, row.world_size, options);
  const int ulps = ComputeUlps(measured, options, row.world_size);
  Trial& trial = *owned;
  row.figures.emplace_back();
  if (options.check) row.figures[0].wrong = CountWrong(trial, ulps);
  trial.Clear();

  std::vector<std::optional<Runner>> runners;
  LastRun ran;
  const auto run_own = [&](int calls) {
    const double seconds = Time(trial, calls, options);
    // Before another collective, such as those that combine the times.
    ran = WorldGroup()->last_run(options.device);
    return seconds;
  };
  runners.push_back(Runner{.run = run_own, .together = options.agg_iters});
  for (const std::unique_ptr<Peer>& peer : peers) {
    runners.push_back(MakeRunner(*peer, measured));
    row.figures.push_back({.backend = peer->name()});
    if (runners.back().has_value()) row.figures.back().wrong = 0;
  }
  for (std::optional<Runner>& runner : runners) {
    if (runner.has_value()) runner->calls = CallsFor(*runner, options);
  }
  for (int cycle = 0; cycle < options.run_cycles; ++cycle) {
    for (size_t i = 0; i < runners.size(); ++i) {
      if (!runners[i].has_value()) continue;
      if (options.warmup_iters > 0) runners[i]->run(options.warmup_iters);
      Barrier();
      const double seconds = runners[i]->run(runners[i]->calls);
      row.figures[i].cycles_us.push_back(Together(seconds, options.average) *
                                         1e6);
    }
  }
  row.figures[0].backend = ran.backend;
  // Sends and receives have no algorithm.
  if (measured.operation->flow != Operation::Flow::kRing) {
    row.figures[0].algorithm = ran.algorithm;
  }
  if (options.check) row.figures[0].wrong += CountWrong(trial, ulps);
  if (options.memory_report) row.memory = OwnMemoryUse();
  return row;
}

std::vector<MemoryUse> MemoryOfRanks(const MemoryUse& own) {
  std::vector<int64_t> mine = {own.resident_max_bytes, own.shared_bytes};
  std::vector<int64_t> all(mine.size() * GetWorldSize());
  AllGatherIntoTensor(all, mine);
  std::vector<MemoryUse> uses;
  for (size_t i = 0; i < all.size(); i += mine.size()) {
    uses.push_back({.resident_max_bytes = all[i], .shared_bytes = all[i + 1]});
  }
  return uses;
}

}  // namespace muster::worker::bench
