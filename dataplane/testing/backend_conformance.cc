#include "dataplane/testing/backend_conformance.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/local_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {

bool CanReduce(LocalWorld& world, ReduceOp op, DataType type) {
  double memory[2] = {};
  return !IsUnimplemented(
      world.at(0).Check({.kind = CollectiveKind::kAllReduce,
                         .tensors = {Tensor(memory, type, {1})},
                         .reduce_op = op}));
}

namespace {

std::map<std::string, Arithmetic>& Arithmetics() {
  static auto* const arithmetics = new std::map<std::string, Arithmetic>;
  return *arithmetics;
}

}  // namespace

void SetArithmetic(const std::string& backend, const Arithmetic& arithmetic) {
  Arithmetics()[backend] = arithmetic;
}

Arithmetic GetArithmetic(const std::string& backend) {
  const auto found = Arithmetics().find(backend);
  return found == Arithmetics().end() ? Arithmetic{} : found->second;
}

namespace {

using ::testing::HasSubstr;

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
      // Alternates small ones and streams.
      values[i].assign(i % 3 == 0 ? 10'000 : 10, i);
      works.push_back(communicator.Start({.kind = CollectiveKind::kAllReduce,
                                          .tensors = {Tensor(values[i])}}));
      works.back()->OnCompletion(
          [&order, i](const Status&) { order.push_back(i); });
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
    EXPECT_EQ(bad->Wait().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(
        bad->status().message(),
        absl::StrCat("broadcast #1 on group \"world\": argument root: "
                     "invalid root rank: ",
                     world_size(), ", must be from 0 to ", world_size() - 1));
    const auto meaningless =
        communicator.Start({.kind = CollectiveKind::kAllReduce,
                            .tensors = {Tensor(values)},
                            .reduce_op = ReduceOp::kBxor});
    EXPECT_EQ(meaningless->Wait().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(meaningless->status().message()),
                HasSubstr("all_reduce #2 on group \"world\": argument "
                          "reduce_op: Cannot use ReduceOp.BXOR"));
    const auto on_gpu = communicator.Start(
        {.kind = CollectiveKind::kAllReduce,
         .tensors = {Tensor(values.data(), {4}, {DeviceType::kCuda, 1})}});
    EXPECT_EQ(on_gpu->Wait().code(), StatusCode::kUnimplemented);

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
