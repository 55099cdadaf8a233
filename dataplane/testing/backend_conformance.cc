#include "dataplane/testing/backend_conformance.h"

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/reference.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

using ::testing::HasSubstr;

// Calls `body` with a value of the C++ type of `type`.
template <typename Body>
void WithTypeOf(DataType type, Body&& body) {
  switch (type) {
    case DataType::kInt32:
      return body(int32_t{});
    case DataType::kInt64:
      return body(int64_t{});
    case DataType::kFloat32:
      return body(float{});
    case DataType::kFloat64:
      return body(double{});
    default:
      FAIL() << "no test for " << DataTypeName(type);
  }
}

template <typename T>
std::vector<T> Inputs(ReduceOp op, const Communicator& communicator,
                      size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] =
        InputElement<T>(op, communicator.world_size(), communicator.rank(), i);
  }
  return values;
}

template <typename T>
std::string FirstWrong(const std::vector<T>& actual, ReduceOp op,
                       int world_size) {
  for (size_t i = 0; i < actual.size(); ++i) {
    const T expected = ExpectedElement<T>(op, world_size, i);
    if (!IsClose(actual[i], expected)) {
      return absl::StrCat("element ", i, " is ", actual[i], ", expected ",
                          expected);
    }
  }
  return "";
}

// All-reduces `count` elements on every rank, twice with the same inputs, and
// checks values, equality between ranks and equality between the two runs.
template <typename T>
void CheckAllReduce(LocalWorld& world, ReduceOp op, size_t count) {
  SCOPED_TRACE(absl::StrCat("all_reduce ", ReduceOpName(op), " of ", count));
  std::vector<std::vector<T>> first(world.world_size());
  std::vector<std::vector<T>> second(world.world_size());
  world.OnEachRank([&](Communicator& communicator) {
    for (auto* run : {&first, &second}) {
      std::vector<T>& values = (*run)[communicator.rank()];
      values = Inputs<T>(op, communicator, count);
      const auto work = communicator.Start({.kind = CollectiveKind::kAllReduce,
                                            .tensors = {Tensor(values)},
                                            .reduce_op = op});
      EXPECT_TRUE(work->Wait().ok()) << work->status();
    }
  });
  EXPECT_EQ(FirstWrong(first[0], op, world.world_size()), "");
  for (int rank = 0; rank < world.world_size(); ++rank) {
    for (const auto& run : {first, second}) {
      EXPECT_EQ(run[rank].size(), count);
      EXPECT_TRUE(count == 0 || std::memcmp(run[rank].data(), first[0].data(),
                                            count * sizeof(T)) == 0)
          << "rank " << rank << " differs from rank 0 in its first run";
    }
  }
}

TEST_P(AllReduceConformance, EveryOpAndCountGivesTheReferenceOnEveryRank) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  WithTypeOf(data_type(), [&](auto zero) {
    for (const ReduceOp op : kReduceOps) {
      for (const size_t count : kCounts) {
        CheckAllReduce<decltype(zero)>(world, op, count);
      }
    }
    for (const size_t count : kMoreCounts) {
      CheckAllReduce<decltype(zero)>(world, ReduceOp::kSum, count);
    }
    CheckAllReduce<decltype(zero)>(world, ReduceOp::kAvg, kLargeCount);
  });
}

TEST_P(BackendConformance, NanOfAnyRankReachesEveryRankWithTheSameBits) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  for (const ReduceOp op : kReduceOps) {
    for (const size_t count : {size_t{64}, size_t{20'000}}) {
      std::vector<std::vector<float>> results(world_size());
      world.OnEachRank([&](Communicator& communicator) {
        std::vector<float>& values = results[communicator.rank()];
        values = Inputs<float>(op, communicator, count);
        // Each rank brings its own NaN, at a place of its own and at one that
        // all share; their payloads differ.
        const uint32_t bits = 0x7fc00001u + communicator.rank();
        std::memcpy(&values[communicator.rank()], &bits, sizeof(bits));
        std::memcpy(&values[40], &bits, sizeof(bits));
        const auto work =
            communicator.Start({.kind = CollectiveKind::kAllReduce,
                                .tensors = {Tensor(values)},
                                .reduce_op = op});
        EXPECT_TRUE(work->Wait().ok()) << work->status();
      });
      for (int rank = 0; rank < world_size(); ++rank) {
        EXPECT_TRUE(std::isnan(results[0][rank])) << ReduceOpName(op);
        EXPECT_EQ(std::memcmp(results[rank].data(), results[0].data(),
                              count * sizeof(float)),
                  0)
            << ReduceOpName(op) << " of " << count << " on rank " << rank;
      }
      EXPECT_TRUE(std::isnan(results[0][40])) << ReduceOpName(op);
      EXPECT_FALSE(std::isnan(results[0][41])) << ReduceOpName(op);
    }
  }
}

TEST_P(BackendConformance, BroadcastCopiesEveryRootToEveryRank) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  std::vector<size_t> counts = kCounts;
  counts.insert(counts.end(), kMoreCounts.begin(), kMoreCounts.end());
  for (int root = 0; root < world_size(); ++root) {
    // Once is enough for the long one: its order is that of the ranks.
    if (root == world_size() / 2) counts.push_back(kLargeCount);
    for (const size_t count : counts) {
      world.OnEachRank([&](Communicator& communicator) {
        std::vector<int32_t> values =
            Inputs<int32_t>(ReduceOp::kSum, communicator, count);
        const auto work =
            communicator.Start({.kind = CollectiveKind::kBroadcast,
                                .tensors = {Tensor(values)},
                                .root = root});
        EXPECT_TRUE(work->Wait().ok()) << work->status();
        for (size_t i = 0; i < count; ++i) {
          const auto expected =
              InputElement<int32_t>(ReduceOp::kSum, world_size(), root, i);
          if (values[i] != expected) {
            ADD_FAILURE() << "root " << root << " count " << count << " rank "
                          << communicator.rank() << " element " << i << " is "
                          << values[i] << ", expected " << expected;
            break;
          }
        }
      });
    }
  }
}

TEST_P(BackendConformance, BroadcastTakesTypesThatCannotBeReduced) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<uint16_t> values(10, 0x3c00 + communicator.rank());
    const auto work = communicator.Start(
        {.kind = CollectiveKind::kBroadcast,
         .tensors = {Tensor(values.data(), DataType::kFloat16, {2, 5})}});
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    EXPECT_EQ(values, std::vector<uint16_t>(10, 0x3c00));
  });
}

TEST_P(BackendConformance, NobodyLeavesABarrierBeforeAllHaveCome) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  constexpr int kRounds = 50;
  std::atomic<int> arrivals{0};
  world.OnEachRank([&](Communicator& communicator) {
    for (int round = 1; round <= kRounds; ++round) {
      ++arrivals;
      const auto work = communicator.Start({.kind = CollectiveKind::kBarrier});
      EXPECT_TRUE(work->Wait().ok()) << work->status();
      EXPECT_GE(arrivals.load(), round * world_size());
    }
  });
}

TEST_P(BackendConformance, OutstandingWorksCompleteInOrderHoweverWaitedFor) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    constexpr int kOutstanding = 20;
    std::vector<std::vector<int64_t>> values(kOutstanding);
    std::vector<std::shared_ptr<Work>> works;
    std::vector<int> order;
    for (int i = 0; i < kOutstanding; ++i) {
      // Small ones and streams take turns.
      values[i].assign(i % 3 == 0 ? 10'000 : 10, i);
      works.push_back(communicator.Start({.kind = CollectiveKind::kAllReduce,
                                          .tensors = {Tensor(values[i])}}));
      works.back()->OnCompletion(
          [&order, i](const absl::Status&) { order.push_back(i); });
    }
    for (int i = kOutstanding - 1; i >= 0; --i) {
      EXPECT_TRUE(works[i]->Wait().ok()) << works[i]->status();
      EXPECT_TRUE(works[i]->IsCompleted());
      EXPECT_EQ(values[i].back(), int64_t{i} * world_size());
    }
    for (int i = 0; i < kOutstanding; ++i) EXPECT_EQ(order[i], i);
    EXPECT_EQ(communicator.progress().last_completed, uint64_t{kOutstanding});
  });
}

TEST_P(BackendConformance, TwoGroupsOfTheSameRanksDoNotMix) {
  LocalWorld a({.backend = backend(), .world_size = world_size()});
  LocalWorld b({.backend = backend(), .world_size = world_size()});
  a.OnEachRank([&](Communicator& first) {
    Communicator& second = b.at(first.rank());
    std::vector<int64_t> x(20'000, 1);
    std::vector<int64_t> y(20'000, 5);
    const auto works = {first.Start({.kind = CollectiveKind::kAllReduce,
                                     .tensors = {Tensor(x)}}),
                        second.Start({.kind = CollectiveKind::kAllReduce,
                                      .tensors = {Tensor(y)}})};
    for (const auto& work : works) EXPECT_TRUE(work->Wait().ok());
    EXPECT_EQ(x[19'999], world_size());
    EXPECT_EQ(y[19'999], 5 * world_size());
  });
}

TEST_P(BackendConformance, BadArgumentsFailTheirCallAloneAndTakeANumber) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<float> values(4, 1);
    const auto bad = communicator.Start({.kind = CollectiveKind::kBroadcast,
                                         .tensors = {Tensor(values)},
                                         .root = world_size()});
    EXPECT_EQ(bad->Wait().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(
        bad->status().message(),
        absl::StrCat("broadcast #1 on group \"world\": argument root: "
                     "invalid root rank: ",
                     world_size(), ", must be from 0 to ", world_size() - 1));
    std::vector<uint8_t> bytes(4, 1);
    const auto unsupported = communicator.Start(
        {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(bytes)}});
    EXPECT_EQ(unsupported->Wait().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(unsupported->status().message()),
                HasSubstr("all_reduce #2 on group \"world\": reduction of "
                          "uint8 is not available"));
    const auto on_gpu = communicator.Start(
        {.kind = CollectiveKind::kAllReduce,
         .tensors = {Tensor(values.data(), {4}, {DeviceType::kCuda, 1})}});
    EXPECT_EQ(on_gpu->Wait().code(), absl::StatusCode::kUnimplemented);

    const auto good = communicator.Start(
        {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(values)}});
    EXPECT_TRUE(good->Wait().ok()) << good->status();
    EXPECT_EQ(good->description(), "all_reduce #4 float32[4] sum");
    EXPECT_EQ(values[3], static_cast<float>(world_size()));
    EXPECT_TRUE(communicator.status().ok());
  });
}

}  // namespace
}  // namespace muster::dataplane::testing
