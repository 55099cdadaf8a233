// DataParallel on ranks with different numbers of inputs, against formulas in
// double.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/parallel/data/testing/model.h"
#include "client/testing/local_groups.h"
#include "muster/data_parallel.h"
#include "muster/errors.h"
#include "muster/join.h"

namespace muster {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::GetNumbers;
using testing::GetSample;
using testing::GiveSamples;
using testing::LocalGroups;
using testing::Model;
using testing::SetNumbers;

using Group = std::shared_ptr<ProcessGroup>;
using Numbers = std::vector<double>;
using Shapes = std::vector<Model::Shape>;

constexpr double kRate = 0.25;

// Rank r has counts[r] inputs.
int GetMost(const std::vector<int>& counts) {
  return *std::max_element(counts.begin(), counts.end());
}

// Minimises (w - target)^2 / 2, where each rank's target differs. In a step the
// ranks without input give zeros, and the sum is divided by all.
double GetTarget(int rank, size_t i) {
  return 3.0 * rank - static_cast<double>(i);
}

void TrainReference(const std::vector<int>& counts, Numbers& weights) {
  for (int step = 0; step < GetMost(counts); ++step) {
    for (size_t i = 0; i < weights.size(); ++i) {
      double sum = 0;
      for (size_t rank = 0; rank < counts.size(); ++rank) {
        if (counts[rank] <= step) continue;
        sum += weights[i] - GetTarget(static_cast<int>(rank), i);
      }
      weights[i] -= kRate * sum / static_cast<double>(counts.size());
    }
  }
}

class DataParallelJoinTest : public ::testing::TestWithParam<int> {};

TEST_P(DataParallelJoinTest, TrainsLikeOneProcessAndEndsWithEqualModels) {
  const int ranks = GetParam();
  // Rank 1 has no input at first, rank 2 none at all.
  std::vector<std::vector<int>> epochs = {
      {3, 0, 0, 7}, {2, 5, 0, 1}, {0, 0, 0, 0}};
  for (auto& counts : epochs) counts.resize(static_cast<size_t>(ranks));
  LocalGroups groups(ranks);
  for (const bool in_buckets : {false, true}) {
    EXPECT_THAT(groups.OnEachRank([&](const Group& group, int rank) {
      Model memory({{{5}, DataType::kFloat64}, {{4}, DataType::kFloat64}},
                   in_buckets);
      DataParallel model(memory.parameters(), {.group = group});
      Join join({&model});
      std::vector<Numbers> reference = {Numbers(5), Numbers(4)};
      for (const std::vector<int>& counts : epochs) {
        for (int step = 0; step < counts[static_cast<size_t>(rank)]; ++step) {
          join.BeginStep();
          for (const size_t i : {1, 0}) {
            Numbers gradient = GetNumbers(model.parameters()[i].value);
            for (size_t k = 0; k < gradient.size(); ++k) {
              gradient[k] -= GetTarget(rank, k);
            }
            SetNumbers(model.Gradient(i), gradient);
            model.Ready(i);
          }
          model.FinishStep();
          for (const size_t i : {0, 1}) {
            Numbers weights = GetNumbers(model.parameters()[i].value);
            const Numbers average = GetNumbers(model.Gradient(i));
            for (size_t k = 0; k < weights.size(); ++k) {
              weights[k] -= kRate * average[k];
            }
            SetNumbers(model.parameters()[i].value, weights);
          }
        }
        join.Finish();
        for (const size_t i : {0, 1}) {
          TrainReference(counts, reference[i]);
          const Numbers weights = GetNumbers(model.parameters()[i].value);
          for (size_t k = 0; k < weights.size(); ++k) {
            EXPECT_NEAR(weights[k], reference[i][k], 1e-12);
          }
        }
      }
    }),
                Each(""));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DataParallelJoinTest,
                         ::testing::Values(1, 2, 4));

TEST(DataParallelJoinTest, BuffersAreThoseOfTheHighestRankOfTheLastStep) {
  LocalGroups groups(3);
  for (const bool broadcasts : {true, false}) {
    EXPECT_THAT(groups.OnEachRank([&](const Group& group, int rank) {
      Model memory(Shapes(1, {{2}}));
      std::vector<float> mean = {0};
      DataParallel model(memory.parameters(),
                         {.group = group,
                          .buffers = {{"mean", mean}},
                          .broadcast_buffers = broadcasts});
      Join join({&model});
      // Ranks 0 and 1 have the last step.
      for (int step = 0; step < (rank == 2 ? 1 : 2); ++step) {
        join.BeginStep();
        model.BeginStep();
        GiveSamples(model, rank, step, 0);
        model.FinishStep();
      }
      mean[0] = 10.0f * static_cast<float>(rank);
      EXPECT_THAT(join.Finish().last_ranks, ElementsAre(0, 10));
      EXPECT_EQ(mean[0], broadcasts ? 10 : 10.0f * static_cast<float>(rank));
    }),
                Each(""));
  }
}

TEST(DataParallelJoinTest, AJoinOfBatchesMayContainOneOfMicrobatches) {
  // Rank r has 2 - r batches, and batch b of rank r has 1 + b + 2 r inputs,
  // each of which is a step. A step of a batch has the ranks that have the
  // batch.
  constexpr int kRanks = 3;
  const auto count = [](int rank, int batch) {
    return batch < 2 - rank ? 1 + batch + 2 * rank : 0;
  };
  LocalGroups groups(kRanks);
  EXPECT_THAT(groups.OnEachRank([&](const Group& group, int rank) {
    Model memory(Shapes(2, {{3}}));
    DataParallel model(memory.parameters(), {.group = group});
    JoinableAllReduce batches(DataType::kInt32, 1, {.group = group});
    Join inner({&model});
    Join outer({&inner, &batches});
    for (int batch = 0; batch < 2 - rank; ++batch) {
      outer.BeginStep();
      for (int step = 0; step < count(rank, batch); ++step) {
        inner.BeginStep();
        for (const size_t i : {1, 0}) {
          GiveSamples(model, rank, 10 * batch + step, i);
        }
        model.FinishStep();
        for (const size_t i : {0, 1}) {
          double sum = 0;
          for (int other = 0; other < kRanks; ++other) {
            if (count(other, batch) <= step) continue;
            sum += GetSample(other, 10 * batch + step, i, 2);
          }
          EXPECT_NEAR(GetNumbers(model.Gradient(i))[2], sum / kRanks, 1e-6);
        }
      }
      inner.Finish();
      std::vector<int32_t> with = {1};
      batches.Run(with);
      EXPECT_EQ(with[0], 2 - batch);
    }
    EXPECT_THAT(outer.Finish().last_ranks, ElementsAre(0));
  }),
              Each(""));
}

TEST(DataParallelJoinTest, WhatNoSyncAccumulatedCountsWhenARankRunsOut) {
  // Two inputs for each reduced step. Rank r has counts[r] inputs: rank 1 runs
  // out between the two, rank 2 after them, rank 3 begins none.
  const std::vector<int> counts = {6, 3, 2, 0};
  LocalGroups groups(4);
  for (const bool in_buckets : {false, true}) {
    EXPECT_THAT(groups.OnEachRank([&](const Group& group, int rank) {
      Model memory(Shapes(2, {{3}}), in_buckets);
      DataParallel model(memory.parameters(), {.group = group});
      Join join({&model});
      int reduced = 0;
      const auto check = [&] {
        // The inputs 2 k and 2 k + 1 of each rank that has them.
        for (const size_t i : {0, 1}) {
          double sum = 0;
          for (int other = 0; other < 4; ++other) {
            for (const int input : {2 * reduced, 2 * reduced + 1}) {
              if (input >= counts[static_cast<size_t>(other)]) continue;
              sum += GetSample(other, input, i, 1);
            }
          }
          EXPECT_NEAR(GetNumbers(model.Gradient(i))[1], sum / 4, 1e-6)
              << reduced;
        }
        ++reduced;
      };
      const auto run = [&](int input) {
        join.BeginStep();
        for (const size_t i : {1, 0}) {
          const Tensor gradient = model.Gradient(i);
          Numbers numbers = GetNumbers(gradient);
          for (size_t k = 0; k < numbers.size(); ++k) {
            if (input % 2 == 0) numbers[k] = 0;
            numbers[k] += GetSample(rank, input, i, k);
          }
          SetNumbers(gradient, numbers);
          model.Ready(i);
        }
        model.FinishStep();
      };
      for (int input = 0; input < counts[static_cast<size_t>(rank)]; ++input) {
        if (input % 2 == 0) {
          const DataParallel::NoSync no_sync(model);
          run(input);
        } else {
          run(input);
          check();
        }
      }
      // The others' steps that reduce, and no others.
      const int64_t before = model.logging_data().num_iterations;
      join.Finish();
      EXPECT_EQ(model.logging_data().num_iterations, 3);
      EXPECT_EQ(before, reduced);
    }),
                Each(""));
  }
}

TEST(DataParallelJoinTest, UnusedParametersAreFoundBesideShadows) {
  LocalGroups groups(3);
  for (const bool in_buckets : {false, true}) {
    EXPECT_THAT(groups.OnEachRank([&](const Group& group, int rank) {
      Model memory(Shapes(3, {{3}}), in_buckets);
      DataParallel model(memory.parameters(), {.group = group,
                                               .bucket_bytes = 1,
                                               .first_bucket_bytes = 1,
                                               .find_unused_parameters = true});
      Join join({&model});
      // Rank r has r steps. Rank 1 does not use parameter 2, nobody uses 0.
      for (int step = 0; step < rank; ++step) {
        SetNumbers(model.Gradient(0), {7, 8, 9});
        join.BeginStep();
        GiveSamples(model, rank, step, 1);
        if (rank == 2) GiveSamples(model, rank, step, 2);
        model.FinishStep();
        const double both = GetSample(1, step, 1, 0) + GetSample(2, step, 1, 0);
        EXPECT_NEAR(GetNumbers(model.Gradient(1))[0],
                    (step == 0 ? both : GetSample(2, step, 1, 0)) / 3, 1e-6);
        EXPECT_NEAR(GetNumbers(model.Gradient(2))[0],
                    GetSample(2, step, 2, 0) / 3, 1e-6);
        EXPECT_THAT(GetNumbers(model.Gradient(0)), ElementsAre(7, 8, 9));
      }
      join.Finish();
      EXPECT_THAT(model.logging_data().unused_parameters, ElementsAre("p0"));
    }),
                Each(""));
  }
}

TEST(DataParallelJoinTest, TheFirstStepOfAStaticGraphHasNoShadow) {
  LocalGroups groups(2);
  EXPECT_THAT(groups.OnEachRank([&](const Group& group, int rank) {
    Model memory(Shapes(3, {{3}}));
    DataParallel model(memory.parameters(), {.group = group,
                                             .bucket_bytes = 1,
                                             .first_bucket_bytes = 1,
                                             .static_graph = true});
    Join join({&model});
    // Rank 0 uses parameter 0, rank 1 uses parameter 2, both use parameter 1.
    const auto run = [&](int64_t step, bool both) {
      join.BeginStep();
      GiveSamples(model, rank, step, rank == 0 ? 0 : 2);
      GiveSamples(model, rank, step, 1);
      model.FinishStep();
      const double of_rank_1 = both ? GetSample(1, step, 1, 0) : 0;
      EXPECT_NEAR(GetNumbers(model.Gradient(0))[0],
                  GetSample(0, step, 0, 0) / 2, 1e-6);
      EXPECT_NEAR(GetNumbers(model.Gradient(1))[0],
                  (GetSample(0, step, 1, 0) + of_rank_1) / 2, 1e-6);
      if (!both) return;
      EXPECT_NEAR(GetNumbers(model.Gradient(2))[0],
                  GetSample(1, step, 2, 0) / 2, 1e-6);
    };
    // Rank 1 has no input in the first epoch, and the most in the second.
    if (rank == 0) run(0, /*both=*/false);
    join.Finish();
    EXPECT_FALSE(model.logging_data().has_rebuilt_buckets);
    run(1, /*both=*/true);
    EXPECT_TRUE(model.logging_data().has_rebuilt_buckets);
    run(2, /*both=*/true);
    if (rank == 1) {
      join.BeginStep();
      GiveSamples(model, rank, 3, 2);
      GiveSamples(model, rank, 3, 1);
      model.FinishStep();
      EXPECT_NEAR(GetNumbers(model.Gradient(2))[0], GetSample(1, 3, 2, 0) / 2,
                  1e-6);
    }
    join.Finish();
    // The graph is known.
    EXPECT_THROW(model.Ready(rank == 0 ? 2 : 0), DistError);
  }),
              Each(""));
}

TEST(DataParallelJoinTest, AShadowSendsWhatErrorFeedbackHasKept) {
  // Rank 1 has one step, rank 0 many of zeros. What rank 1 has given comes in
  // all of them together.
  for (const auto& make :
       {+[] { return MakeInt8CompressHook(); },
        +[] { return MakePowerSgdHook({.start_step = 0}); }}) {
    LocalGroups groups(2);
    EXPECT_THAT(groups.OnEachRank([&](const Group& group, int rank) {
      Model memory(Shapes(1, {{16, 16}}));
      DataParallel model(memory.parameters(), {.group = group, .hook = make()});
      Join join({&model});
      Numbers sum(256);
      Numbers first;
      for (int step = 0; step < (rank == 0 ? 40 : 1); ++step) {
        join.BeginStep();
        if (rank == 1) {
          GiveSamples(model, rank, 0, 0);
        } else {
          SetNumbers(model.Gradient(0), Numbers(256));
          model.Ready(0);
        }
        model.FinishStep();
        const Numbers average = GetNumbers(model.Gradient(0));
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += average[i];
        if (step == 0) first = average;
      }
      join.Finish();
      if (rank == 1) return;
      double largest = 0;
      double largest_at_first = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        const double exact = GetSample(1, 0, 0, i) / 2;
        largest = std::max(largest, std::abs(sum[i] - exact));
        largest_at_first =
            std::max(largest_at_first, std::abs(first[i] - exact));
      }
      EXPECT_LT(20 * largest, largest_at_first);
    }),
                Each(""));
  }
}

}  // namespace
}  // namespace muster
