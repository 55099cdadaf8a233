// Coalescing does not change a bit of the results.

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "dataplane/coalescing.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/reference.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

using ::testing::HasSubstr;

// Element counts of one rank's part: many that are fused, and some on both
// sides of each limit (32 KiB, 128 KiB, a megabyte).
std::vector<size_t> Counts() {
  std::vector<size_t> counts = {0, 1, 13, 0, 8190, 1, 9001, 2, 5};
  counts.insert(counts.end(), 40, 20);
  counts.insert(counts.end(), {40'003, 7, 1});
  return counts;
}

// Values whose sum depends on the order of the operands.
template <typename T>
T Rough(int rank, size_t index) {
  const size_t mixed = index * 7919 + static_cast<size_t>(rank) * 104'729;
  const auto number = static_cast<float>(mixed % 4093);
  if constexpr (std::is_same_v<T, Flag>) {
    return {static_cast<int>(number) % 3 == 0};
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(number);
  } else if constexpr (kIsComplex<T>) {
    return {number / 7, 1 / (number + 1)};
  } else {
    return static_cast<T>((number + 0.1f) / (number < 2000 ? 7.0f : 0.003f) /
                          4096);
  }
}

// The inputs and outputs of one rank's collectives of one kind.
template <typename T>
struct Batch {
  Batch(CollectiveKind kind, DataType type, ReduceOp op, int rank,
        int world_size) {
    const bool gathers = kind == CollectiveKind::kAllGatherIntoTensor;
    const bool scatters = kind == CollectiveKind::kReduceScatterTensor;
    size_t index = 0;
    for (const size_t count : Counts()) {
      auto& input = inputs.emplace_back(scatters ? count * world_size : count);
      for (T& value : input) value = Rough<T>(rank, index++);
      outputs.emplace_back(gathers ? count * world_size : count);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      Collective one;
      one.kind = kind;
      one.reduce_op = op;
      if (kind == CollectiveKind::kAllReduce) {
        one.tensors = {MakeTensor(type, inputs[i])};
      } else {
        one.inputs = {MakeTensor(type, inputs[i])};
        one.outputs = {MakeTensor(type, outputs[i])};
      }
      collectives.push_back(one);
    }
  }

  // Whether the lists have the same bits.
  static bool Same(const std::vector<std::vector<T>>& a,
                   const std::vector<std::vector<T>>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].empty()) continue;
      if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) != 0) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::vector<T>> inputs;
  std::vector<std::vector<T>> outputs;
  std::vector<Collective> collectives;
};

template <typename T>
void Compare(Communicator& communicator, CollectiveKind kind, DataType type,
             ReduceOp op) {
  const int rank = communicator.rank();
  const int world_size = communicator.world_size();
  Batch<T> apart(kind, type, op, rank, world_size);
  Batch<T> together(kind, type, op, rank, world_size);
  for (const Collective& one : apart.collectives) {
    const auto work = communicator.Start(one);
    ASSERT_TRUE(work->Wait().ok()) << work->status();
  }
  const uint64_t before = communicator.progress().last_enqueued;
  const auto work = StartCoalesced(communicator, together.collectives);
  EXPECT_TRUE(work->Wait().ok()) << work->status();
  EXPECT_TRUE(work->IsCompleted());
  const uint64_t started = communicator.progress().last_enqueued - before;
  if (kind == CollectiveKind::kAllGatherIntoTensor ||
      communicator.fusable_bytes() > 0) {
    EXPECT_LT(started, Counts().size() / 3);
  }
  EXPECT_TRUE(Batch<T>::Same(apart.inputs, together.inputs) &&
              Batch<T>::Same(apart.outputs, together.outputs))
      << CollectiveKindName(kind) << " " << DataTypeName(type) << " "
      << ReduceOpName(op);
}

TEST_P(ReductionConformance, CoalescedOnesAreBitwiseWhatTheyAreApart) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  const bool reduces = CanReduce(world, ReduceOp::kSum, data_type());
  world.OnEachRank([&](Communicator& communicator) {
    WithElementType(data_type(), [&](auto value) {
      using T = decltype(value);
      for (const CollectiveKind kind :
           {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatterTensor,
            CollectiveKind::kAllGatherIntoTensor}) {
        if (!reduces && IsReduction(kind)) continue;
        Compare<T>(communicator, kind, data_type(), ReduceOp::kSum);
      }
      if (reduces && data_type() != DataType::kBool) {
        Compare<T>(communicator, CollectiveKind::kAllReduce, data_type(),
                   ReduceOp::kAvg);
      }
    });
  });
}

TEST_P(BackendConformance, CoalescedTypesMayDiffer) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<std::vector<float>> floats(50, {1, 2});
    std::vector<std::vector<int64_t>> integers(50, {3});
    std::vector<Collective> collectives;
    for (int i = 0; i < 50; ++i) {
      collectives.push_back(
          {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(floats[i])}});
      collectives.push_back({.kind = CollectiveKind::kAllReduce,
                             .tensors = {Tensor(integers[i])}});
    }
    const auto work = StartCoalesced(communicator, collectives);
    EXPECT_EQ(work->description(), "coalesced 100 all_reduce");
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    // Integers do not depend on the order, so they are always fused into one.
    EXPECT_EQ(communicator.progress().last_enqueued,
              communicator.fusable_bytes() > 0 ? 2u : 51u);
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(floats[i][1], 2.0f * static_cast<float>(world_size()));
      EXPECT_EQ(integers[i][0], 3 * world_size());
    }
  });
}

TEST_P(BackendConformance, OneBadOfTheCoalescedStartsNone) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<float> values(4, 1);
    const Collective good = {.kind = CollectiveKind::kAllReduce,
                             .tensors = {Tensor(values)}};
    Collective bad = good;
    bad.tensors = {Tensor(values.data(), {-1})};
    auto work = StartCoalesced(communicator, {good, bad});
    EXPECT_EQ(work->Wait().message(),
              "coalesced all_reduce on group \"world\": number 1 of 2: "
              "argument tensors[0]: negative dimension in float32[-1]");
    bad = good;
    bad.reduce_op = ReduceOp::kMax;
    work = StartCoalesced(communicator, {good, bad});
    EXPECT_THAT(std::string(work->Wait().message()),
                HasSubstr("cannot coalesce reductions by max and sum"));
    bad = {.kind = CollectiveKind::kBarrier};
    work = StartCoalesced(communicator, {good, bad});
    EXPECT_THAT(std::string(work->Wait().message()),
                HasSubstr("cannot coalesce barrier with all_reduce"));
    work = StartCoalesced(communicator, {bad});
    EXPECT_THAT(std::string(work->Wait().message()),
                HasSubstr("cannot coalesce barrier: only all_reduce, "));
    EXPECT_TRUE(StartCoalesced(communicator, {})->Wait().ok());
    EXPECT_EQ(values[0], 1);
    // The first bad one took a number, as without coalescing.
    EXPECT_EQ(communicator.progress().last_enqueued, 1u);
    EXPECT_TRUE(StartCoalesced(communicator, {good})->Wait().ok());
  });
}

TEST_P(FailureConformance, ALostRankFailsTheCoalescedOnce) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.Destroy(world_size() - 1);
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<std::vector<float>> values(30, std::vector<float>(9000, 1));
    std::vector<Collective> collectives;
    collectives.reserve(values.size());
    for (auto& one : values) {
      collectives.push_back(
          {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(one)}});
    }
    const auto work = StartCoalesced(communicator, collectives);
    int calls = 0;
    const Status failed = work->Wait();
    EXPECT_TRUE(IsUnavailable(failed)) << failed;
    EXPECT_EQ(communicator.status(), failed);
    work->OnCompletion([&](const Status& status) {
      ++calls;
      EXPECT_FALSE(status.ok());
    });
    EXPECT_EQ(calls, 1);
  });
}

}  // namespace
}  // namespace muster::dataplane::testing
