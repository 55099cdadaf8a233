#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "dataplane/reduction.h"

namespace muster::dataplane {
namespace {

template <typename T>
void BM_Combine(benchmark::State& state, absl::string_view set, ReduceOp op) {
  const auto count = static_cast<size_t>(state.range(0)) / sizeof(T);
  std::vector<T> a(count, 1);
  std::vector<T> b(count, 2);
  const Reduction reduction(kDataTypeOf<T>, op, set);
  for (auto _ : state) {
    reduction.Combine(a.data(), a.data(), b.data(), count);
    benchmark::DoNotOptimize(a.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// Adds 16 bit elements to float32 accumulators.
void BM_Add(benchmark::State& state, absl::string_view set, DataType type) {
  const auto count = static_cast<size_t>(state.range(0)) / sizeof(uint16_t);
  const std::vector<uint16_t> elements(count, 1);
  std::vector<float> accumulators(count, 2);
  const Reduction reduction(type, ReduceOp::kSum, set);
  for (auto _ : state) {
    reduction.Add(accumulators.data(), elements.data(), count, 1);
    benchmark::DoNotOptimize(accumulators.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void Register() {
  for (const absl::string_view set : InstructionSets()) {
    for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
      benchmark::RegisterBenchmark(
          absl::StrCat(DataTypeName(type), "/add/", set).c_str(),
          [set, type](benchmark::State& state) { BM_Add(state, set, type); })
          ->Arg(256 << 10);
    }
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
      const std::string suffix = absl::StrCat("/", ReduceOpName(op), "/", set);
      benchmark::RegisterBenchmark(absl::StrCat("float32", suffix).c_str(),
                                   [set, op](benchmark::State& state) {
                                     BM_Combine<float>(state, set, op);
                                   })
          ->Arg(1 << 10)
          ->Arg(256 << 10)
          ->Arg(16 << 20);
      benchmark::RegisterBenchmark(absl::StrCat("int64", suffix).c_str(),
                                   [set, op](benchmark::State& state) {
                                     BM_Combine<int64_t>(state, set, op);
                                   })
          ->Arg(256 << 10);
    }
  }
}

}  // namespace
}  // namespace muster::dataplane

int main(int argc, char** argv) {
  muster::dataplane::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
