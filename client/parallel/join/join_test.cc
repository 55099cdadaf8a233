#include "muster/join.h"

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Group = std::shared_ptr<ProcessGroup>;

// The global ranks whose count is larger than `step`.
std::vector<int> RanksWith(const std::vector<int>& counts, int step) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] <= step) continue;
    ranks.push_back(LocalGroups::GlobalRank(static_cast<int>(rank)));
  }
  return ranks;
}

std::vector<int> RanksOfTheLastStep(const std::vector<int>& counts) {
  const int most = *std::max_element(counts.begin(), counts.end());
  return RanksWith(counts, most - 1);
}

// The collectives of one epoch, in which rank r has counts[r] inputs.
void RunEpoch(Join& join, JoinableAllReduce& sum, JoinableReduceScatter& most,
              JoinableAllGather& all, const std::vector<int>& counts,
              int rank) {
  const auto size = static_cast<int>(counts.size());
  for (int step = 0; step < counts[static_cast<size_t>(rank)]; ++step) {
    join.BeginStep();
    const std::vector<int> active = RanksWith(counts, step);
    EXPECT_EQ(join.active_ranks(), active);

    std::vector<int64_t> values = {1, rank, 100 * step};
    sum.Run(values);
    const auto ranks = static_cast<int64_t>(active.size());
    int64_t rank_sum = 0;
    for (const int one : active) rank_sum += one / 10;
    EXPECT_THAT(values, ElementsAre(ranks, rank_sum, 100 * step * ranks));

    std::vector<float> input;
    for (int to = 0; to < size; ++to) {
      input.push_back(static_cast<float>(-100 * to - rank - 1));
    }
    std::vector<float> output = {0};
    most.Run(output, input);
    EXPECT_THAT(output, ElementsAre(-100 * rank - active.front() / 10 - 1));

    std::vector<int32_t> mine = {rank + 1, step + 1};
    std::vector<int32_t> parts(static_cast<size_t>(2 * size), -1);
    all.Run(parts, mine);
    for (int from = 0; from < size; ++from) {
      const bool has_input = counts[static_cast<size_t>(from)] > step;
      EXPECT_EQ(parts[static_cast<size_t>(2 * from)], has_input ? from + 1 : 0);
      EXPECT_EQ(parts[static_cast<size_t>(2 * from + 1)],
                has_input ? step + 1 : 0);
    }
  }
  const JoinResult result = join.Finish();
  EXPECT_EQ(result.last_ranks, RanksOfTheLastStep(counts));
  EXPECT_EQ(result.is_last,
            counts[static_cast<size_t>(rank)] ==
                *std::max_element(counts.begin(), counts.end()));
}

class JoinSizesTest : public ::testing::TestWithParam<int> {};

TEST_P(JoinSizesTest, EveryStepHasTheRanksWithInputsAlone) {
  const int size = GetParam();
  std::mt19937 random(17);
  std::vector<std::vector<int>> epochs = {
      std::vector<int>(static_cast<size_t>(size), 0),
      std::vector<int>(static_cast<size_t>(size), 3)};
  for (int i = 0; i < 10; ++i) {
    std::vector<int>& counts = epochs.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      counts.push_back(static_cast<int>(random() % 6));
    }
  }
  LocalGroups world(size);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    JoinableAllReduce sum(DataType::kInt64, 3, {.group = group});
    JoinableReduceScatter most(DataType::kFloat32, 1,
                               {.op = ReduceOp::kMax, .group = group});
    JoinableAllGather all(DataType::kInt32, 2, group);
    Join join({&sum, &most, &all});
    for (const std::vector<int>& counts : epochs) {
      RunEpoch(join, sum, most, all, counts, rank);
    }
  }),
              Each(""));
}

INSTANTIATE_TEST_SUITE_P(All, JoinSizesTest, ::testing::Values(1, 2, 3, 4));

TEST(JoinTest, AJoinMayContainAJoin) {
  // Rank r has r batches; batch b of rank r has b + r inputs.
  constexpr int kSize = 3;
  LocalGroups world(kSize);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    JoinableAllReduce sum(DataType::kInt32, 1, {.group = group});
    JoinableAllReduce batches(DataType::kInt32, 1, {.group = group});
    Join inner({&sum});
    Join outer({&inner, &batches});
    for (int batch = 0; batch < rank; ++batch) {
      outer.BeginStep();
      for (int i = 0; i < batch + rank; ++i) {
        inner.BeginStep();
        std::vector<int32_t> value = {1};
        sum.Run(value);
        int32_t expected = 0;
        for (int other = 0; other < kSize; ++other) {
          if (batch < other && i < batch + other) ++expected;
        }
        EXPECT_EQ(value[0], expected);
      }
      // Rank 2 has the most inputs in every batch.
      EXPECT_THAT(inner.Finish().last_ranks, ElementsAre(20));
      std::vector<int32_t> value = {1};
      batches.Run(value);
      EXPECT_EQ(value[0], kSize - 1 - batch);
    }
    EXPECT_THAT(outer.Finish().last_ranks, ElementsAre(20));
  }),
              Each(""));
}

// A program's own: a broadcast from the rank that was last.
class Weights : public Joinable {
 public:
  explicit Weights(Group group, int rank)
      : group_(std::move(group)), weights_({static_cast<float>(rank)}) {}

  std::shared_ptr<ProcessGroup> join_group() const override { return group_; }
  void ShadowStep() override { ++shadows_; }
  void FinishJoin(const JoinResult& result) override {
    group_->Broadcast(weights_, result.last_ranks[0]);
  }

  float weight() const { return weights_[0]; }
  int shadows() const { return shadows_; }

 private:
  const Group group_;
  std::vector<float> weights_;
  int shadows_ = 0;
};

TEST(JoinTest, AProgramsOwnJoinableLearnsWhoWasLast) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    Weights weights(group, rank);
    Join join({&weights});
    // Rank 1 has the most inputs.
    const int count = rank == 1 ? 5 : rank;
    for (int step = 0; step < count; ++step) join.BeginStep();
    EXPECT_EQ(join.Finish().is_last, rank == 1);
    EXPECT_EQ(weights.weight(), 1);
    EXPECT_EQ(weights.shadows(), 5 - count);
  }),
              Each(""));
}

TEST(JoinTest, EarlyTerminationThrowsOnAllRanks) {
  LocalGroups world(3);
  const auto texts = world.OnEachRank([&](const Group& group, int rank) {
    JoinableAllReduce sum(DataType::kFloat32, 1, {.group = group});
    Join join({&sum}, {.throw_on_early_termination = true});
    const auto run_epoch = [&](int count) {
      for (int step = 0; step < count; ++step) {
        join.BeginStep();
        std::vector<float> value = {1};
        sum.Run(value);
        EXPECT_EQ(value[0], 3);
      }
      return join.Finish();
    };
    EXPECT_THAT(run_epoch(2).last_ranks, ElementsAre(0, 10, 20));
    try {
      run_epoch(rank == 1 ? 5 : 2);
      ADD_FAILURE() << "ranks 0 and 2 have run out";
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kOutOfRange);
      EXPECT_THAT(error.culprit_ranks(), ElementsAre(0, 20));
      // Another epoch.
      EXPECT_THAT(run_epoch(1).last_ranks, ElementsAre(0, 10, 20));
      throw;
    }
  });
  EXPECT_THAT(texts,
              Each("Join: detected at least one rank that exhausted inputs, "
                   "throwing across all ranks: ranks 0, 20 have no input "
                   "for step 3"));
}

TEST(JoinTest, RanksMustHaveEqualJoinables) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    JoinableAllReduce sum(DataType::kFloat32, rank + 1, {.group = group});
    Join join({&sum});
    if (rank == 0) join.BeginStep();
    join.Finish();
  }),
              Each("Join: argument joinables, number 0: rank 10 has sum by "
                   "JoinableAllReduce(float32[2]), rank 0 has sum by "
                   "JoinableAllReduce(float32[1])"));
  EXPECT_THAT(
      world.OnEachRank([&](const Group& group, int rank) {
        JoinableAllGather all(DataType::kInt8, 4, group);
        Join join({&all}, {.throw_on_early_termination = rank == 1});
        join.Finish();
      }),
      Each("Join: option throw_on_early_termination: rank 10 has 1, rank 0 has "
           "0"));
  // The group goes on.
  EXPECT_THAT(
      world.OnEachRank([](const Group& group, int) { group->Barrier(); }),
      Each(""));
}

// Both ranks get `text`, and the group goes on.
void ExpectOnBoth(const std::function<void(const Group&, int)>& body,
                  const std::string& text) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    try {
      body(group, rank);
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(error.culprit_ranks(), ElementsAre(10));
      group->Barrier();
      throw;
    }
  }),
              Each(text));
}

TEST(JoinTest, RanksInTwoJoinsAreNamed) {
  ExpectOnBoth(
      [](const Group& group, int rank) {
        JoinableAllReduce sum(DataType::kFloat32, 1, {.group = group});
        Join inner({&sum});
        Join outer({&inner});
        outer.BeginStep();
        inner.BeginStep();
        // Rank 1 leaves out the end of its batch.
        if (rank == 1) outer.BeginStep();
        inner.BeginStep();
      },
      "Join: argument joinables, number 0: rank 10 has join of [sum by "
      "JoinableAllReduce(float32[1])], rank 0 has sum by "
      "JoinableAllReduce(float32[1])");
}

TEST(JoinTest, RanksInTwoStepsAreNamed) {
  ExpectOnBoth(
      [](const Group& group, int rank) {
        JoinableAllReduce sum(DataType::kFloat32, 1, {.group = group});
        Join one({&sum});
        Join two({&sum});
        one.BeginStep();
        (rank == 0 ? one : two).BeginStep();
      },
      "Join: steps before this one: rank 10 has 0, rank 0 has 1");
}

// Counts its steps, and may have none.
class Counter : public Joinable {
 public:
  explicit Counter(Group group) : group_(std::move(group)) {}

  std::shared_ptr<ProcessGroup> join_group() const override { return group_; }
  void ShadowStep() override { ++shadows; }
  bool RunsInStep() const override { return runs; }
  std::string DescribeJoin() const override { return "counter"; }

  bool runs = true;
  int shadows = 0;

 private:
  const Group group_;
};

TEST(JoinTest, ShadowsOnlyWhatRunsInAStep) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    Counter always(group);
    Counter rarely(group);
    Join join({&always, &rarely});
    for (int step = 0; step < 5 * rank; ++step) {
      rarely.runs = step % 5 == 0;
      join.BeginStep();
    }
    join.Finish();
    EXPECT_EQ(always.shadows, 10 - 5 * rank);
    EXPECT_EQ(rarely.shadows, 2 - rank);
  }),
              Each(""));
}

TEST(JoinTest, RanksThatRunDifferentJoinablesAreNamed) {
  ExpectOnBoth(
      [](const Group& group, int rank) {
        Counter one(group);
        Counter two(group);
        Join join({&one, &two});
        join.BeginStep();
        two.runs = rank == 0;
        join.BeginStep();
      },
      "Join: argument joinables, number 1: counter runs in step 2 on rank 0, "
      "but not on rank 10");
}

TEST(JoinTest, TheEndOfAnInnerJoinEndsTheEpochOfTheOuterOne) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    Counter counter(group);
    Join inner({&counter}, {.throw_on_early_termination = true});
    Join outer({&inner});
    outer.BeginStep();
    inner.BeginStep();
    inner.Finish();
    try {
      // Rank 1 has no second batch.
      if (rank == 1) outer.Finish();
      outer.BeginStep();
      inner.BeginStep();
      ADD_FAILURE();
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kOutOfRange);
      EXPECT_THAT(error.culprit_ranks(), ElementsAre(10));
    }
    // An epoch without batches, and one with a batch.
    EXPECT_THAT(outer.Finish().last_ranks, ElementsAre(0, 10));
    outer.BeginStep();
    inner.BeginStep();
    inner.Finish();
    EXPECT_THAT(outer.Finish().last_ranks, ElementsAre(0, 10));
  }),
              Each(""));
}

std::string GetError(const std::function<void()>& call) {
  try {
    call();
  } catch (const DistError& error) {
    return error.what();
  }
  return "";
}

TEST(JoinTest, RefusesBadLists) {
  LocalGroups world(1);
  LocalGroups other(1);
  JoinableAllGather one(DataType::kInt8, 4, world.at(0));
  JoinableAllGather two(DataType::kInt8, 4, other.at(0));
  EXPECT_EQ(GetError([] { Join join({}); }),
            "Join: argument joinables: there are none");
  EXPECT_EQ(GetError([&] {
              Join join({&one, nullptr});
            }),
            "Join: argument joinables: number 1 is null");
  EXPECT_EQ(GetError([&] { Join join(std::vector<Joinable*>(64, &one)); }),
            "Join: argument joinables: there are 64, only 63 are possible");
  EXPECT_EQ(GetError([&] {
              Join join({&one, &two});
            }),
            "Join: argument joinables: number 1 has the group \"local\", "
            "number 0 has \"local\"");
}

TEST(JoinTest, RanksOutsideTheGroupDoNothing) {
  JoinableAllReduce sum(DataType::kFloat32, 1,
                        {.group = LocalGroups::NonMember()});
  Join join({&sum});
  join.BeginStep();
  std::vector<float> value = {5};
  sum.Run(value);
  EXPECT_THAT(value, ElementsAre(5));
  EXPECT_THAT(join.Finish().last_ranks, IsEmpty());
}

TEST(JoinTest, ARankThatLeavesEndsItOnAllRanks) {
  LocalGroups world(3);
  const auto texts = world.OnEachRank([&](const Group& group, int rank) {
    JoinableAllReduce sum(DataType::kFloat32, 1, {.group = group});
    Join join({&sum});
    // Rank 0 waits in Finish, rank 2 in BeginStep.
    for (int step = 0; step < 4 * rank; ++step) {
      if (rank == 1 && step == 2) world.Leave(1);
      join.BeginStep();
      std::vector<float> value = {1};
      sum.Run(value);
    }
    join.Finish();
  });
  EXPECT_THAT(texts[0], HasSubstr("rank 10"));
  EXPECT_NE(texts[1], "");
  EXPECT_THAT(texts[2], HasSubstr("rank 10"));
}

}  // namespace
}  // namespace muster
