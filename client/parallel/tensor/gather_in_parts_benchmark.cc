// An all_gather of rows and their product with a weight: one after the other,
// and in parts (GatherSequenceInParts). Two ranks are threads, over gloo. In
// one process the gather is a copy, which takes processor time that nothing can
// hide: take away the copy, and give the loopback interface the speed of a
// network, in a name space of its own. Besides, a region of few bytes with and
// without the comparison of its arguments.
//
//   unshare -n sh -c 'ip link set lo up; tc qdisc add dev lo root tbf
//     rate 2gbit burst 1mb latency 100ms;
//     MUSTER_GLOO_PEER_MEMORY=0 gather_in_parts_benchmark'

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "Eigen/Core"
#include "benchmark/benchmark.h"
#include "client/testing/local_groups.h"
#include "glog/logging.h"
#include "muster/tensor_parallel.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;

constexpr int kRanks = 2;
constexpr int64_t kRows = 2048;  // The ranks' rows together.
constexpr int64_t kWidth = 1024;

using Matrix =
    Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

enum class Way { kProduct, kGather, kOneAfterTheOther, kInParts };

// One rank's activations and weight.
class Layer {
 public:
  explicit Layer(int64_t columns)
      : own_(Matrix::Random(kRows / kRanks, kWidth)),
        whole_(Matrix::Random(kRows, kWidth)),
        weight_(Matrix::Random(kWidth, columns)),
        product_(kRows, columns) {}

  void Run(Way way, const std::shared_ptr<ProcessGroup>& group) {
    const Tensor own(own_.data(), {kRows / kRanks, kWidth});
    const Tensor whole(whole_.data(), {kRows, kWidth});
    const auto multiply = [this](const Tensor& rows, int64_t first) {
      const int64_t count = rows.shape()[0];
      product_.middleRows(first, count).noalias() =
          whole_.middleRows(first, count) * weight_;
    };
    if (way == Way::kInParts) {
      GatherSequenceInParts(whole, own, multiply, {.group = group});
      return;
    }
    if (way != Way::kProduct) {
      RegionForward(Region::kGatherSequence, whole, own, {.group = group});
    }
    if (way != Way::kGather) multiply(whole, 0);
  }

 private:
  Matrix own_;
  Matrix whole_;
  Matrix weight_;
  Matrix product_;
};

void BM_Layer(benchmark::State& state, Way way) {
  LocalGroups world(kRanks);
  std::vector<Layer> layers(kRanks, Layer(state.range(0)));
  const auto run = [&](int times) {
    const auto thrown = world.OnEachRank([&](const auto& group, int rank) {
      for (int i = 0; i < times; ++i) {
        layers[static_cast<size_t>(rank)].Run(way, group);
      }
    });
    for (const std::string& text : thrown) CHECK(text.empty()) << text;
  };
  run(1);
  constexpr int kTimes = 8;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    run(kTimes);
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - start;
    state.SetIterationTime(elapsed.count() / kTimes);
  }
}

void BM_SmallRegion(benchmark::State& state) {
  LocalGroups world(kRanks, std::chrono::seconds(60), "shm");
  constexpr int kTimes = 1000;
  const auto run = [&] {
    const auto thrown = world.OnEachRank([&](const auto& group, int) {
      std::vector<float> values(static_cast<size_t>(state.range(0)));
      for (int i = 0; i < kTimes; ++i) {
        RegionForward(Region::kReduce, values, values,
                      {.group = group, .compare = state.range(1) != 0});
      }
    });
    for (const std::string& text : thrown) CHECK(text.empty()) << text;
  };
  run();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - start;
    state.SetIterationTime(elapsed.count() / kTimes);
  }
}
BENCHMARK(BM_SmallRegion)
    ->ArgNames({"floats", "compare"})
    ->ArgsProduct({{1024, 65'536}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

#define MUSTER_WAY(name, way)                 \
  BENCHMARK_CAPTURE(BM_Layer, name, Way::way) \
      ->Arg(32)                               \
      ->Arg(128)                              \
      ->UseManualTime()                       \
      ->Unit(benchmark::kMillisecond)

MUSTER_WAY(product, kProduct);
MUSTER_WAY(gather, kGather);
MUSTER_WAY(one_after_the_other, kOneAfterTheOther);
MUSTER_WAY(in_parts, kInParts);

}  // namespace
}  // namespace muster

BENCHMARK_MAIN();
