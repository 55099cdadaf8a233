// Measures the bubble of schedules, with stages that sleep, against the
// formula. Ranks are threads; a sleeping stage needs no core.

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "client/testing/local_groups.h"
#include "glog/logging.h"
#include "muster/pipeline.h"

namespace muster {
namespace {

using std::chrono::microseconds;

constexpr int64_t kActivationFloats = 16'384;
// The time of one microbatch on one rank, however many stages it has. The
// halves of a backward take as long as a forward.
constexpr microseconds kForward(10'000);

enum Schedule : int64_t { kGPipe, k1F1B, kInterleaved, kZeroBubble };
constexpr int kStagesPerRank = 2;

PipelineSchedule MakeSchedule(int64_t kind, int ranks, int microbatches) {
  switch (kind) {
    case kGPipe:
      return MakeGPipe(ranks, microbatches);
    case k1F1B:
      return Make1F1B(ranks, microbatches);
    case kInterleaved:
      return MakeInterleaved1F1B(ranks, microbatches, kStagesPerRank);
    default:
      return MakeZeroBubbleH1(ranks, microbatches);
  }
}

std::vector<PipelineStage> MakeStages(const PipelineSchedule& schedule,
                                      int rank) {
  const PipelineShape shape = {DataType::kFloat32, {kActivationFloats}};
  const auto time = kForward * schedule.ranks() / schedule.stages();
  const auto work = [time] { std::this_thread::sleep_for(time); };
  std::vector<PipelineStage> stages;
  for (int number = rank; number < schedule.stages();
       number += schedule.ranks()) {
    PipelineStage stage;
    stage.stage = number;
    if (number > 0) stage.input = shape;
    stage.output = shape;
    stage.forward = [work](int, const Tensor&, const Tensor&) { work(); };
    stage.backward_input = [work](int, const Tensor&, const Tensor&,
                                  const Tensor&) { work(); };
    stage.backward_weight = [work](int, const Tensor&, const Tensor&) {
      work();
    };
    if (number + 1 == schedule.stages()) {
      stage.loss = [](int, const Tensor&, const Tensor&) { return 0.0; };
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

void BM_Step(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(1));
  const auto schedule =
      MakeSchedule(state.range(0), ranks, static_cast<int>(state.range(2)));
  testing::LocalGroups world(ranks, std::chrono::seconds(60), "shm");
  std::vector<std::unique_ptr<Pipeline>> pipelines(static_cast<size_t>(ranks));
  const auto on_each_rank = [&](const auto& body) {
    for (const auto& error : world.OnEachRank(body)) CHECK_EQ(error, "");
  };
  on_each_rank([&](const std::shared_ptr<ProcessGroup>& group, int rank) {
    pipelines[static_cast<size_t>(rank)] = std::make_unique<Pipeline>(
        schedule, MakeStages(schedule, rank), PipelineOptions{.group = group});
  });
  double compute = 0;
  double step = 0;
  for (auto _ : state) {
    on_each_rank([&](const auto&, int rank) {
      pipelines[static_cast<size_t>(rank)]->Step();
    });
    std::chrono::nanoseconds longest{0};
    for (const auto& pipeline : pipelines) {
      compute += static_cast<double>(pipeline->last_times().compute.count());
      longest = std::max(longest, pipeline->last_times().step);
    }
    step += static_cast<double>(longest.count()) * ranks;
  }
  const double per_stage = static_cast<double>(ranks) / schedule.stages();
  state.SetLabel(schedule.name);
  state.counters["bubble"] = 1 - compute / step;
  state.counters["formula"] =
      schedule
          .Simulate([&](const PipelineAction& one) {
            if (!one.computes()) return 0.0;
            return (one.kind == PipelineActionKind::kBackward ? 2 : 1) *
                   per_stage;
          })
          .bubble_fraction;
}
BENCHMARK(BM_Step)
    ->ArgNames({"schedule", "ranks", "microbatches"})
    ->ArgsProduct({{kGPipe, k1F1B, kInterleaved, kZeroBubble}, {4}, {4, 16}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace muster

BENCHMARK_MAIN();
