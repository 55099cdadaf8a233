// Local SGD and post-local SGD among ranks that are threads.

#include "muster/averaging.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

TEST(PeriodicModelAveragerTest, AveragesAfterTheWarmupEveryPeriod) {
  for (const int size : {1, 2, 3, 4}) {
    LocalGroups world(size);
    EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
      std::vector<float> single(3);
      std::vector<double> pair(2);
      std::vector<uint16_t> brain(1);
      PeriodicModelAverager averager(
          {single, pair, Tensor(brain.data(), DataType::kBfloat16, {1})},
          {.period = 3, .warmup_steps = 2, .first_step = 1, .group = group});
      std::vector<int> averaged;
      for (int step = 1; step < 10; ++step) {
        const auto mine = static_cast<float>(step + 2 * rank);
        single.assign(3, mine);
        pair.assign(2, -mine);
        brain[0] = rank % 2 == 0 ? 0x3f80 : 0x3f80 + 0x80;  // 1, 2
        EXPECT_EQ(averager.step(), step);
        const bool has_averaged = averager.AverageParameters();
        if (has_averaged) averaged.push_back(step);
        const float expected =
            has_averaged ? static_cast<float>(step + size - 1) : mine;
        EXPECT_THAT(single, Each(expected));
        EXPECT_THAT(pair, Each(-expected));
        // Two of four, one of two: 1.5.
        if (has_averaged && size % 2 == 0) {
          EXPECT_EQ(brain[0], 0x3fc0);
        }
      }
      EXPECT_THAT(averaged, ElementsAre(2, 5, 8));
    }),
                Each(""));
  }
}

// Minimises (w - target)^2 / 2 on each rank, for its own target: the single
// process computes all ranks' weights.
TEST(PostLocalSgdTest, TrainsLikeTheReference) {
  constexpr int kSize = 3;
  constexpr int kSteps = 11;
  constexpr double kRate = 0.3;
  const std::vector<double> targets = {1, -2, 7};
  const PostLocalSgdOptions options = {.warmup_steps = 4, .period = 3};
  std::vector<std::vector<double>> expected;  // By step and rank.
  std::vector<double> weights(kSize, 5);
  const auto average = [](std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    values.assign(values.size(), sum / static_cast<double>(values.size()));
  };
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> gradients;
    for (size_t r = 0; r < kSize; ++r) {
      gradients.push_back(weights[r] - targets[r]);
    }
    if (step < options.warmup_steps) average(gradients);
    for (size_t r = 0; r < kSize; ++r) weights[r] -= kRate * gradients[r];
    if (step == 4 || step == 7 || step == 10) average(weights);
    expected.push_back(weights);
  }
  LocalGroups world(kSize);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    const auto r = static_cast<size_t>(rank);
    std::vector<double> weight = {5};
    std::vector<double> gradient = {0};
    PostLocalSgdOptions mine = options;
    mine.group = group;
    PostLocalSgd sgd({weight}, {gradient}, mine);
    for (size_t step = 0; step < kSteps; ++step) {
      gradient[0] = weight[0] - targets[r];
      sgd.AverageGradients();
      weight[0] -= kRate * gradient[0];
      EXPECT_EQ(sgd.AverageParameters(), step == 4 || step == 7 || step == 10);
      EXPECT_NEAR(weight[0], expected[step][r], 1e-12) << step;
    }
    EXPECT_EQ(sgd.step(), kSteps);
  }),
              Each(""));
}

TEST(PostLocalSgdTest, ASubgroupAveragesGradientsAfterTheWarmup) {
  LocalGroups world(2);
  LocalGroups pair(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    for (const bool has_subgroup : {false, true}) {
      std::vector<float> weight = {0};
      std::vector<float> gradient = {0};
      PostLocalSgd sgd({weight}, {gradient},
                       {.warmup_steps = 1,
                        .period = 100,
                        .group = group,
                        .subgroup = has_subgroup ? pair.at(rank) : nullptr});
      const auto run = [&] {
        gradient[0] = static_cast<float>(2 * rank);
        sgd.AverageGradients();
        sgd.AverageParameters();
        return gradient[0];
      };
      EXPECT_EQ(run(), 1);
      EXPECT_EQ(run(), has_subgroup ? 1 : 2 * rank);
    }
  }),
              Each(""));
}

// The text that all ranks get if rank r has the subgroup that `get` returns.
std::string GetSubgroupError(int size,
                             const std::function<Group(int rank)>& get,
                             int culprit) {
  LocalGroups world(size);
  const auto texts = world.OnEachRank([&](const Group& group, int rank) {
    std::vector<float> weight = {0};
    try {
      PostLocalSgd sgd({weight}, {weight},
                       {.period = 1, .group = group, .subgroup = get(rank)});
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(error.culprit_ranks(), ElementsAre(culprit));
      group->Barrier();
      throw;
    }
  });
  EXPECT_THAT(texts, Each(texts[0]));
  return texts[0];
}

TEST(PostLocalSgdTest, SubgroupsAreComparedOverTheRanks) {
  LocalGroups low(std::vector<int>{0, 10});
  LocalGroups middle(std::vector<int>{10, 20});
  LocalGroups high(std::vector<int>{20, 30});
  EXPECT_EQ(GetSubgroupError(
                4,
                [&](int rank) {
                  return rank == 2 ? nullptr
                                   : (rank < 2 ? low : high).at(rank % 2);
                },
                20),
            "PostLocalSgd: option subgroup: rank 20 has none, rank 0 has a "
            "group");
  EXPECT_EQ(GetSubgroupError(
                4,
                [&](int rank) {
                  if (rank == 3) return LocalGroups::NonMember();
                  return (rank < 2 ? low : high).at(rank % 2);
                },
                30),
            "PostLocalSgd: rank 30: option subgroup: this rank is not in it");
  EXPECT_EQ(
      GetSubgroupError(
          3,
          [&](int rank) { return rank == 0 ? low.at(0) : middle.at(rank - 1); },
          0),
      "PostLocalSgd: option subgroup: rank 0 has a group of 2 ranks, "
      "which 1 of the ranks have");
}

std::vector<std::string> MakeWith(
    const std::function<void(int rank, std::vector<Tensor>&,
                             PeriodicModelAveragerOptions&)>& change) {
  LocalGroups world(2);
  const auto texts = world.OnEachRank([&](const Group& group, int rank) {
    std::vector<float> memory(4);
    std::vector<Tensor> parameters = {memory, Tensor(memory.data(), {2, 2})};
    PeriodicModelAveragerOptions options = {.period = 2, .group = group};
    change(rank, parameters, options);
    try {
      PeriodicModelAverager averager(parameters, options);
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(error.culprit_ranks().size(), 1u);
      group->Barrier();
      throw;
    }
  });
  EXPECT_THAT(texts, Each(texts[0]));
  return texts;
}

TEST(PeriodicModelAveragerTest, AllRanksGetWhatIsWrongOnOne) {
  EXPECT_EQ(MakeWith([](int rank, auto&, auto& options) {
              if (rank == 1) options.period = 0;
            })[0],
            "PeriodicModelAverager: rank 10: option period must be at least 1 "
            "but was 0");
  EXPECT_EQ(MakeWith([](int rank, auto&, auto& options) {
              if (rank == 1) options.warmup_steps = 5;
            })[0],
            "PeriodicModelAverager: option warmup_steps: rank 10 has 5, rank 0 "
            "has 0");
  EXPECT_EQ(MakeWith([](int rank, auto& parameters, auto&) {
              if (rank == 1) parameters.pop_back();
            })[0],
            "PeriodicModelAverager: the number of parameters: rank 10 has 1, "
            "rank 0 has 2");
  EXPECT_EQ(MakeWith([](int rank, auto& parameters, auto&) {
              if (rank == 1) parameters[1] = parameters[0];
            })[0],
            "PeriodicModelAverager: argument parameters, number 1: rank 10 has "
            "float32[4], rank 0 has float32[2,2]");
  EXPECT_EQ(MakeWith([](int rank, auto& parameters, auto&) {
              if (rank == 0) {
                parameters[1] =
                    Tensor(parameters[0].data(), DataType::kInt32, {4});
              }
            })[0],
            "PeriodicModelAverager: rank 0: argument parameters, number 1 is "
            "int32[4], must be float16, bfloat16, float32 or float64");
  EXPECT_EQ(MakeWith([](int rank, auto& parameters, auto&) {
              if (rank == 1)
                parameters[0] = Tensor(static_cast<float*>(nullptr), {-1});
            })[0],
            "PeriodicModelAverager: rank 10: argument parameters, number 0: "
            "negative dimension in float32[-1]");
}

TEST(PeriodicModelAveragerTest, RanksOutsideTheGroupDoNothing) {
  std::vector<float> weight = {3};
  PostLocalSgd sgd({weight}, {weight},
                   {.period = 1, .group = LocalGroups::NonMember()});
  sgd.AverageGradients();
  EXPECT_FALSE(sgd.AverageParameters());
}

TEST(PeriodicModelAveragerTest, ARankThatLeavesEndsItOnAllRanks) {
  LocalGroups world(3);
  const auto texts = world.OnEachRank([&](const Group& group, int rank) {
    std::vector<float> weight = {3};
    PeriodicModelAverager averager({weight}, {.period = 2, .group = group});
    for (int step = 0; step < 6; ++step) {
      if (rank == 1 && step == 3) world.Leave(1);
      averager.AverageParameters();
    }
  });
  EXPECT_THAT(texts[0], HasSubstr("rank 10"));
  EXPECT_NE(texts[1], "");
  EXPECT_THAT(texts[2], HasSubstr("rank 10"));
}

}  // namespace
}  // namespace muster
