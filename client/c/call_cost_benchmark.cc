// Compares the cost of a call in C with that in C++: an all_reduce of 4 bytes
// in a group of one rank, where nothing waits.

#include <cstdint>
#include <memory>

#include "benchmark/benchmark.h"
#include "muster/distributed.h"
#include "muster/hash_store.h"
#include "muster/muster.h"

namespace muster::c {
namespace {

class Group {
 public:
  Group() {
    InitProcessGroup(
        {.world_size = 1, .rank = 0, .store = std::make_shared<HashStore>()});
  }
  ~Group() { DestroyProcessGroup(); }
};

void BM_AllReduceInCpp(benchmark::State& state) {
  const Group group;
  int32_t value = 1;
  for (auto _ : state) AllReduce(Tensor(&value, {1}));
}
BENCHMARK(BM_AllReduceInCpp);

void BM_AllReduceInC(benchmark::State& state) {
  const Group group;
  int32_t value = 1;
  muster_tensor tensor = {};
  tensor.data = &value;
  tensor.dtype = MUSTER_INT32;
  tensor.count = 1;
  for (auto _ : state) {
    if (muster_all_reduce(&tensor, MUSTER_SUM, nullptr, nullptr) != MUSTER_OK) {
      state.SkipWithError("failed");
    }
  }
}
BENCHMARK(BM_AllReduceInC);

void BM_AllReduceInCWithAGroup(benchmark::State& state) {
  const Group group;
  muster_group* world = nullptr;
  muster_world_group(&world);
  int32_t value = 1;
  muster_tensor tensor = {};
  tensor.data = &value;
  tensor.dtype = MUSTER_INT32;
  tensor.count = 1;
  muster_reduction_options options = {};
  options.size = sizeof(options);
  for (auto _ : state) {
    if (muster_all_reduce(&tensor, MUSTER_SUM, world, &options) != MUSTER_OK) {
      state.SkipWithError("failed");
    }
  }
  muster_group_release(world);
}
BENCHMARK(BM_AllReduceInCWithAGroup);

void BM_PreparedAllReduceInC(benchmark::State& state) {
  const Group group;
  int32_t value = 1;
  muster_tensor tensor = {};
  tensor.data = &value;
  tensor.dtype = MUSTER_INT32;
  tensor.count = 1;
  muster_prepared* prepared = nullptr;
  muster_prepare_all_reduce(&tensor, MUSTER_SUM, nullptr, nullptr, &prepared);
  for (auto _ : state) {
    if (muster_prepared_run(prepared) != MUSTER_OK) {
      state.SkipWithError("failed");
    }
  }
  muster_prepared_release(prepared);
}
BENCHMARK(BM_PreparedAllReduceInC);

}  // namespace
}  // namespace muster::c

BENCHMARK_MAIN();
