#include "muster/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/parallel/data/testing/model.h"
#include "client/telemetry/data_parallel_metrics.h"
#include "client/testing/local_groups.h"
#include "glog/logging.h"
#include "muster/debug.h"
#include "muster/errors.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::GetAverage;
using testing::GetNumbers;
using testing::GiveSamples;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LocalGroups;
using testing::Model;
using Shapes = std::vector<Model::Shape>;

// Small buckets of both kinds, several of them.
const Shapes& MixedShapes() {
  static const Shapes shapes = {{{7}},
                                {{3, 5}},
                                {{}},
                                {{11}, DataType::kFloat64},
                                {{2, 2, 2}},
                                {{5}, DataType::kBfloat16},
                                {{64}},
                                {{9}, DataType::kFloat16},
                                {{1}, DataType::kFloat64}};
  return shapes;
}

DataParallelOptions SmallBuckets(const std::shared_ptr<ProcessGroup>& group) {
  return {.group = group, .bucket_bytes = 64, .first_bucket_bytes = 16};
}

void ExpectAverages(const DataParallel& model, int ranks, int64_t step) {
  for (size_t parameter = 0; parameter < model.parameters().size();
       ++parameter) {
    const Tensor gradient = model.Gradient(parameter);
    const std::vector<double> numbers = GetNumbers(gradient);
    for (size_t i = 0; i < numbers.size(); ++i) {
      // The samples and the result are rounded.
      ASSERT_NEAR(numbers[i], GetAverage(ranks, step, parameter, i),
                  2 * testing::GetRounding(gradient.data_type()))
          << "parameter " << parameter << " step " << step;
    }
  }
}

std::vector<size_t> Shuffled(size_t count, uint32_t seed) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  std::mt19937 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

class DataParallelTest : public ::testing::TestWithParam<int> {};

TEST_P(DataParallelTest, AveragesInEveryOrderOfReadyAndBothKindsOfMemory) {
  const int ranks = GetParam();
  LocalGroups groups(ranks);
  for (const bool in_buckets : {false, true}) {
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      Model memory(MixedShapes(), in_buckets);
      DataParallel model(memory.parameters(), SmallBuckets(group));
      for (int step = 0; step < 4; ++step) {
        for (const size_t parameter :
             Shuffled(MixedShapes().size(),
                      static_cast<uint32_t>(100 * step + rank))) {
          GiveSamples(model, rank, step, parameter);
        }
        model.FinishStep();
        ExpectAverages(model, ranks, step);
      }
      EXPECT_EQ(model.logging_data().num_iterations, 4);
    }),
                Each(""));
  }
}

TEST_P(DataParallelTest, BeginsWithTheValuesAndBuffersOfRank0) {
  const int ranks = GetParam();
  LocalGroups groups(ranks);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory(MixedShapes());
    for (const Parameter& parameter : memory.parameters()) {
      testing::SetNumbers(
          parameter.value,
          std::vector<double>(
              static_cast<size_t>(parameter.value.element_count()), 1 + rank));
    }
    std::vector<int64_t> count = {rank + 5};
    DataParallelOptions options = SmallBuckets(group);
    options.buffers = {{"count", count}};
    DataParallel model(memory.parameters(), options);
    for (const Parameter& parameter : model.parameters()) {
      EXPECT_THAT(GetNumbers(parameter.value), Each(1.0));
    }
    EXPECT_THAT(count, ElementsAre(5));
  }),
              Each(""));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DataParallelTest,
                         ::testing::Values(1, 2, 3, 4));

TEST(DataParallelStepsTest, WorksInSharedMemory) {
  LocalGroups groups(3, std::chrono::seconds(60), "shm");
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory(MixedShapes(), /*in_buckets=*/true);
    DataParallel model(memory.parameters(), SmallBuckets(group));
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < MixedShapes().size(); ++i) {
        GiveSamples(model, rank, step, i);
      }
      model.FinishStep();
      ExpectAverages(model, 3, step);
    }
    const DataParallel::LoggingData data = model.logging_data();
    EXPECT_TRUE(data.has_symmetric_buckets);
    EXPECT_EQ(data.symmetric_bucket_count, data.bucket_sizes.size());
  }),
              Each(""));
}

TEST(DataParallelStepsTest, ThreadsMayCallReadyAtTheSameTime) {
  constexpr int kRanks = 2;
  constexpr size_t kParameters = 40;
  LocalGroups groups(kRanks);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory(Shapes(kParameters, {{13}}));
    DataParallel model(memory.parameters(), SmallBuckets(group));
    for (int step = 0; step < 20; ++step) {
      std::atomic<size_t> next{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
          for (size_t at = next++; at < kParameters; at = next++) {
            GiveSamples(model, rank, step, at);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      model.FinishStep();
      ExpectAverages(model, kRanks, step);
    }
  }),
              Each(""));
}

TEST(DataParallelStepsTest,
     BucketsAreRebuiltInTheOrderOfRank0AndKeepTheAverages) {
  LocalGroups groups(2);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory({{{4}}, {{8}}, {{12}}}, /*in_buckets=*/true);
    DataParallelOptions options = SmallBuckets(group);
    options.bucket_bytes = 1;
    DataParallel model(memory.parameters(), options);
    EXPECT_THAT(model.logging_data().bucket_sizes, ElementsAre(48, 32, 16));
    const void* const before = model.Gradient(0).data();
    const std::vector<size_t> order =
        rank == 0 ? std::vector<size_t>{1, 0, 2} : std::vector<size_t>{2, 1, 0};
    for (const size_t i : order) GiveSamples(model, rank, 0, i);
    model.FinishStep();
    EXPECT_THAT(model.logging_data().bucket_sizes, ElementsAre(32, 16, 48));
    EXPECT_TRUE(model.logging_data().has_rebuilt_buckets);
    EXPECT_NE(model.Gradient(0).data(), before);
    ExpectAverages(model, 2, 0);
  }),
              Each(""));
}

TEST(DataParallelStepsTest, BucketsStayIfGradientsComeInTheirOrder) {
  LocalGroups groups(2);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory({{{4}}, {{8}}}, /*in_buckets=*/true);
    DataParallel model(memory.parameters(), SmallBuckets(group));
    const void* const before = model.Gradient(0).data();
    GiveSamples(model, rank, 0, 1);
    GiveSamples(model, rank, 0, 0);
    model.FinishStep();
    EXPECT_FALSE(model.logging_data().has_rebuilt_buckets);
    EXPECT_EQ(model.Gradient(0).data(), before);
  }),
              Each(""));
}

// A hook that counts the buckets that have started.
class CountingHook : public CommunicationHook {
 public:
  std::string Describe() const override { return "counting"; }
  HookStage Start(const GradBucket& bucket) override {
    ++started;
    return all_reduce_->Start(bucket);
  }
  int started = 0;

 private:
  const std::shared_ptr<CommunicationHook> all_reduce_ = MakeAllReduceHook();
};

TEST(DataParallelStepsTest, ABucketStartsWhenItAndThoseBeforeItAreComplete) {
  LocalGroups groups(1);
  Model memory({{{4}}, {{4}}, {{4}}});
  const auto hook = std::make_shared<CountingHook>();
  DataParallel model(memory.parameters(), {.group = groups.at(0),
                                           .bucket_bytes = 1,
                                           .first_bucket_bytes = 1,
                                           .hook = hook});
  model.Ready(1);
  EXPECT_EQ(hook->started, 0);
  model.Ready(2);
  EXPECT_EQ(hook->started, 2);
  model.Ready(0);
  EXPECT_EQ(hook->started, 3);
  model.FinishStep();
}

TEST(DataParallelStepsTest, BuffersAreBroadcastByEachStepUnlessThatIsOff) {
  LocalGroups groups(2);
  for (const bool broadcasts : {true, false}) {
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      Model memory(Shapes(1, {{4}}));
      std::vector<float> mean = {1.0f + static_cast<float>(rank)};
      DataParallel model(memory.parameters(),
                         {.group = group,
                          .buffers = {{"mean", mean}},
                          .broadcast_buffers = broadcasts});
      EXPECT_EQ(mean[0], 1);
      mean[0] = 10.0f + static_cast<float>(rank);
      {
        const DataParallel::NoSync no_sync(model);
        model.BeginStep();
        GiveSamples(model, rank, 0, 0);
        model.FinishStep();
        EXPECT_EQ(mean[0], 10.0f + static_cast<float>(rank));
      }
      model.BeginStep();
      EXPECT_EQ(mean[0], broadcasts ? 10 : 10.0f + static_cast<float>(rank));
      GiveSamples(model, rank, 0, 0);
      model.FinishStep();
    }),
                Each(""));
  }
}

TEST(DataParallelStepsTest, BuffersNeedBeginStep) {
  LocalGroups groups(1);
  Model memory(Shapes(1, {{4}}));
  std::vector<float> mean = {1};
  DataParallel model(memory.parameters(),
                     {.group = groups.at(0), .buffers = {{"mean", mean}}});
  try {
    model.Ready(0);
    FAIL();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(error.what(), HasSubstr("BeginStep is missing"));
  }
  model.BeginStep();
  model.Ready(0);
  model.FinishStep();
}

TEST(DataParallelStepsTest, ASecondBeginStepDoesNothing) {
  LocalGroups groups(2);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory(Shapes(1, {{4}}));
    std::vector<float> mean = {3};
    DataParallel model(memory.parameters(),
                       {.group = group, .buffers = {{"mean", mean}}});
    model.BeginStep();
    mean[0] = 4.0f + static_cast<float>(rank);
    model.BeginStep();
    EXPECT_EQ(mean[0], 4.0f + static_cast<float>(rank));
    GiveSamples(model, rank, 0, 0);
    model.FinishStep();
    ExpectAverages(model, 2, 0);
  }),
              Each(""));
}

TEST(DataParallelStepsTest, AShadowStepInAStepIsAnErrorAndTheStepGoesOn) {
  LocalGroups groups(1);
  Model memory(Shapes(1, {{4}}));
  DataParallel model(memory.parameters(), {.group = groups.at(0)});
  model.BeginStep();
  try {
    model.ShadowStep();
    FAIL();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_STREQ(
        error.what(),
        "data_parallel: ShadowStep in a step that BeginStep has begun");
  }
  GiveSamples(model, 0, 0, 0);
  model.FinishStep();
  ExpectAverages(model, 1, 0);
}

TEST(DataParallelStepsTest, NoSyncAccumulatesUntilTheNextStep) {
  LocalGroups groups(3);
  for (const bool in_buckets : {false, true}) {
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      Model memory(Shapes(5, {{6}}), in_buckets);
      const auto hook = std::make_shared<CountingHook>();
      DataParallelOptions options = SmallBuckets(group);
      options.hook = hook;
      DataParallel model(memory.parameters(), options);
      for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < 5; ++i) {
          const Tensor gradient = model.Gradient(i);
          std::fill_n(static_cast<float*>(gradient.data()), 6, 0.0f);
        }
        const auto add = [&](float number) {
          for (size_t i = 0; i < 5; ++i) {
            auto* const at = static_cast<float*>(model.Gradient(i).data());
            for (int k = 0; k < 6; ++k) at[k] += number;
            model.Ready(i);
          }
          model.FinishStep();
        };
        const int before = hook->started;
        {
          const DataParallel::NoSync no_sync(model);
          const DataParallel::NoSync nested(model);
          add(1.0f + static_cast<float>(rank));
        }
        {
          const DataParallel::NoSync no_sync(model);
          add(10);
        }
        EXPECT_EQ(hook->started, before);
        add(100);
        EXPECT_GT(hook->started, before);
        for (size_t i = 0; i < 5; ++i) {
          EXPECT_THAT(GetNumbers(model.Gradient(i)), Each(112.0));
        }
      }
    }),
                Each(""));
  }
}

TEST(DataParallelStepsTest, WhatNoSyncAccumulatedCountsInAStepWithoutIt) {
  LocalGroups groups(2);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory({{{3}}, {{3}}});
    DataParallel model(memory.parameters(), {.group = group});
    {
      const DataParallel::NoSync no_sync(model);
      GiveSamples(model, rank, 0, 0);
      GiveSamples(model, rank, 0, 1);
      model.FinishStep();
    }
    // Parameter 1 is not used again.
    model.Ready(0);
    model.FinishStep();
    ExpectAverages(model, 2, 0);
  }),
              Each(""));
}

TEST(DataParallelStepsTest, UnusedParametersCountAsZerosAndAreFound) {
  LocalGroups groups(2);
  for (const bool in_buckets : {false, true}) {
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      Model memory({{{3}}, {{3}}, {{3}}}, in_buckets);
      DataParallelOptions options = SmallBuckets(group);
      options.find_unused_parameters = true;
      DataParallel model(memory.parameters(), options);
      for (int step = 0; step < 3; ++step) {
        for (size_t i = 0; i < 3; ++i) {
          testing::SetNumbers(model.Gradient(i), {7, 7, 7});
        }
        // Parameter 2 is used by rank 1 alone, parameter 0 by nobody.
        GiveSamples(model, rank, step, 1);
        if (rank == 1) GiveSamples(model, rank, step, 2);
        model.FinishStep();
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_NEAR(GetNumbers(model.Gradient(1))[i],
                      GetAverage(2, step, 1, i), 1e-6);
          EXPECT_NEAR(GetNumbers(model.Gradient(2))[i],
                      testing::GetSample(1, step, 2, i) / 2, 1e-6);
        }
        EXPECT_THAT(GetNumbers(model.Gradient(0)), Each(7.));
        EXPECT_THAT(model.logging_data().unused_parameters, ElementsAre("p0"));
        EXPECT_FALSE(model.logging_data().has_rebuilt_buckets);
      }
    }),
                Each(""));
  }
}

TEST(DataParallelStepsTest, MissingGradientsAreAnErrorThatNamesThemOnAllRanks) {
  LocalGroups groups(3);
  std::vector<std::vector<int>> culprits(3);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory({{{3}}, {{3}}, {{3}}});
    DataParallel model(memory.parameters(), {.group = group});
    const auto run = [&](int64_t step, bool skips) {
      for (size_t i = 0; i < 3; ++i) {
        if (skips && static_cast<int>(i) < rank) continue;
        GiveSamples(model, rank, step, i);
      }
      model.FinishStep();
    };
    run(0, false);
    std::string text;
    try {
      run(1, true);
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kFailedPrecondition);
      culprits[static_cast<size_t>(rank)] = error.culprit_ranks();
      text = error.status().message();
    }
    EXPECT_EQ(text,
              "data_parallel: parameters without a gradient in step 2 "
              "(find_unused_parameters allows that): rank 10: \"p0\"; rank "
              "20: \"p0\", \"p1\"");
    // The next step works.
    run(2, false);
    ExpectAverages(model, 3, 2);
  }),
              Each(""));
  EXPECT_THAT(culprits, Each(ElementsAre(10, 20)));
}

TEST(DataParallelStepsTest, ManyMissingGradientsAreCountedUnlessDebugging) {
  LocalGroups groups(1);
  Model memory(Shapes(12, {{3}}));
  const auto text = [&]() -> std::string {
    DataParallel model(memory.parameters(), {.group = groups.at(0)});
    try {
      model.FinishStep();
    } catch (const DistError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(text(), HasSubstr("\"p7\" and 4 more"));
  SetDebugLevel(DebugLevel::kInfo);
  EXPECT_THAT(text(), HasSubstr("\"p7\", \"p8\", \"p9\", \"p10\", \"p11\""));
  SetDebugLevel(DebugLevel::kOff);
}

TEST(DataParallelStepsTest, AStaticGraphDoesNotWaitForWhatTheFirstStepLeftOut) {
  LocalGroups groups(2);
  for (const bool in_buckets : {false, true}) {
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      Model memory({{{3}}, {{3}}, {{3}}}, in_buckets);
      const auto hook = std::make_shared<CountingHook>();
      DataParallel model(memory.parameters(), {.group = group,
                                               .bucket_bytes = 1,
                                               .first_bucket_bytes = 1,
                                               .static_graph = true,
                                               .hook = hook});
      for (int step = 0; step < 3; ++step) {
        // Rank 0 does not use parameter 2; nobody uses parameter 1.
        const int before = hook->started;
        testing::SetNumbers(model.Gradient(1), {4, 5, 6});
        if (rank == 1) GiveSamples(model, rank, step, 2);
        GiveSamples(model, rank, step, 0);
        // Rank 0's order is 0, and then those that it does not use.
        if (step > 0) {
          EXPECT_EQ(hook->started - before, 3);
        }
        model.FinishStep();
        EXPECT_EQ(hook->started - before, 3);
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_NEAR(GetNumbers(model.Gradient(0))[i],
                      GetAverage(2, step, 0, i), 1e-6);
          EXPECT_NEAR(GetNumbers(model.Gradient(2))[i],
                      testing::GetSample(1, step, 2, i) / 2, 1e-6);
        }
        EXPECT_THAT(GetNumbers(model.Gradient(1)), ElementsAre(4, 5, 6));
        EXPECT_THAT(model.logging_data().unused_parameters, ElementsAre("p1"));
      }
      // Another set than in the first step is an error on this rank, and one
      // that lacks something is one on all ranks.
      std::string text;
      try {
        model.Ready(1);
      } catch (const DistError& error) {
        text = error.what();
      }
      EXPECT_EQ(text,
                "data_parallel: parameter \"p1\" is ready in step 4, but was "
                "not in the first step of the static graph");
      text.clear();
      try {
        if (rank == 1) GiveSamples(model, rank, 3, 2);
        if (rank == 1) GiveSamples(model, rank, 3, 0);
        model.FinishStep();
      } catch (const DistError& error) {
        text = error.what();
      }
      EXPECT_THAT(text, AllOf(HasSubstr("static graph: rank 0: \"p0\"")));
    }),
                Each(""));
  }
}

TEST(DataParallelStepsTest, ReadyTwiceIsAnErrorThatNamesTheParameter) {
  LocalGroups groups(1);
  Model memory({{{3}}, {{3}}});
  DataParallel model(memory.parameters(), {.group = groups.at(0)});
  const auto text = [&](auto call) -> std::string {
    try {
      call();
    } catch (const DistError& error) {
      return error.what();
    }
    return "";
  };
  model.Ready(1);
  EXPECT_EQ(text([&] { model.Ready(1); }),
            "data_parallel: parameter \"p1\" is ready twice in step 1");
  EXPECT_EQ(text([&] { model.Ready(2); }), "data_parallel: parameter 2 of 2");
  EXPECT_EQ(text([&] { (void)model.Gradient(2); }),
            "data_parallel: parameter 2 of 2");
  EXPECT_EQ(text([&] { model.BeginStep(); }),
            "data_parallel: parameter \"p1\" is ready in a step that "
            "FinishStep has not ended, before BeginStep");
  EXPECT_EQ(text([&] { model.ShadowStep(); }),
            "data_parallel: parameter \"p1\" is ready in a step that "
            "FinishStep has not ended, before ShadowStep");
  // None of them has ended the step.
  model.Ready(0);
  model.FinishStep();
  {
    const DataParallel::NoSync no_sync(model);
    EXPECT_EQ(text([&] { model.ShadowStep(); }),
              "data_parallel: ShadowStep within NoSync");
  }
}

// A hook whose Start waits until it may go on.
class WaitingHook : public CommunicationHook {
 public:
  std::string Describe() const override { return "waiting"; }
  HookStage Start(const GradBucket&) override {
    begun.count_down();
    may_go.wait();
    return {};
  }
  std::latch begun{1};
  std::latch may_go{1};
};

TEST(DataParallelStepsTest, FinishStepNeedsTheEndOfEveryReady) {
  LocalGroups groups(1);
  Model memory(Shapes(1, {{3}}));
  const auto hook = std::make_shared<WaitingHook>();
  DataParallel model(memory.parameters(),
                     {.group = groups.at(0), .hook = hook});
  std::thread thread([&] { model.Ready(0); });
  hook->begun.wait();
  try {
    model.FinishStep();
    ADD_FAILURE();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_STREQ(error.what(),
                 "data_parallel: FinishStep while 1 calls of Ready have not "
                 "returned");
  }
  hook->may_go.count_down();
  thread.join();
  model.FinishStep();
}

// If told so, rank 1 leaves as soon as rank 0 has agreed on the step.
class LeavingHook : public CommunicationHook {
 public:
  LeavingHook(LocalGroups& groups, std::latch& agreed)
      : groups_(groups), agreed_(agreed) {}

  std::string Describe() const override { return "leaving"; }
  HookStage Start(const GradBucket& bucket) override {
    HookStage average = all_reduce_->Start(bucket);
    if (!leaves) return average;
    return HookStage([this, &bucket, average = std::move(average)]() mutable {
      average.Run();
      // It comes after FinishStep's own all_reduce.
      return HookStage(bucket.group->Barrier({.async_op = true}),
                       [this, rank = bucket.group->rank()] {
                         if (rank == 0) return agreed_.count_down();
                         agreed_.wait();
                         groups_.Leave(1);
                       });
    });
  }
  bool leaves = false;

 private:
  const std::shared_ptr<CommunicationHook> all_reduce_ = MakeAllReduceHook();
  LocalGroups& groups_;
  std::latch& agreed_;
};

TEST(DataParallelStepsTest, WhoLeavesWhileNamesAreExchangedEndsTheModel) {
  LocalGroups groups(2);
  std::latch agreed(1);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory(Shapes(1, {{3}}));
    const auto hook = std::make_shared<LeavingHook>(groups, agreed);
    DataParallel model(memory.parameters(), {.group = group, .hook = hook});
    model.Ready(0);
    model.FinishStep();
    hook->leaves = true;
    std::string text;
    try {
      // Parameter 0 is missing, which all ranks would tell each other.
      model.FinishStep();
    } catch (const DistError& error) {
      text = error.what();
    }
    if (rank == 1) return;
    EXPECT_THAT(text, HasSubstr("rank 10"));
    try {
      model.BeginStep();
      ADD_FAILURE();
    } catch (const DistError& error) {
      EXPECT_EQ(error.what(), text);
    }
  }),
              Each(""));
}

TEST(DataParallelStepsTest, AShadowTakesPartWithZeros) {
  LocalGroups groups(3);
  for (const bool finds_unused : {false, true}) {
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      Model memory(Shapes(4, {{6}}));
      std::vector<float> mean = {0};
      DataParallelOptions options = SmallBuckets(group);
      options.buffers = {{"mean", mean}};
      options.find_unused_parameters = finds_unused;
      DataParallel model(memory.parameters(), options);
      // Rank r has input for r steps.
      for (int step = 0; step < 2; ++step) {
        mean[0] = 100.0f * static_cast<float>(rank);
        if (step < rank) {
          model.BeginStep();
          for (size_t i = 0; i < 4; ++i) GiveSamples(model, rank, step, i);
          model.FinishStep();
        } else {
          model.ShadowStep();
        }
        // From the lowest rank with input.
        EXPECT_EQ(mean[0], step == 0 ? 100 : 200);
        for (size_t parameter = 0; parameter < 4; ++parameter) {
          const auto numbers = GetNumbers(model.Gradient(parameter));
          for (size_t i = 0; i < 6; ++i) {
            double sum = 0;
            for (int each = step + 1; each < 3; ++each) {
              sum += testing::GetSample(each, step, parameter, i);
            }
            EXPECT_NEAR(numbers[i], sum / 3, 1e-6);
          }
        }
      }
    }),
                Each(""));
  }
}

// The error of a DataParallel that each rank makes.
std::vector<std::string> GetErrors(
    LocalGroups& groups,
    const std::function<void(const std::shared_ptr<ProcessGroup>&, int)>&
        body) {
  std::vector<std::string> errors = groups.OnEachRank(body);
  for (size_t i = 1; i < errors.size(); ++i) EXPECT_EQ(errors[i], errors[0]);
  return errors;
}

TEST(DataParallelStepsTest, WhatDiffersBetweenRanksIsNamedOnAllOfThem) {
  LocalGroups groups(3);
  const auto first = [&](auto change) {
    return GetErrors(groups, [&](const auto& group, int rank) {
      Model memory({{{3}}, {{4, 2}}});
      Model extra({{{4}, DataType::kFloat64}});
      std::vector<float> mean(2);
      DataParallelOptions options = {.group = group,
                                     .buffers = {{"mean", mean}}};
      std::vector<Parameter> parameters = memory.parameters();
      if (rank == 1) change(parameters, extra.parameters()[0], options);
      const DataParallel model(parameters, options);
    })[0];
  };
  using Parameters = std::vector<Parameter>;
  EXPECT_EQ(first([](Parameters& parameters, auto&, auto&) {
              parameters[1].name = "other\n";
            }),
            "data_parallel: parameter 1: rank 10 has \"other\\n\" "
            "float32[4,2], rank 0 has \"p1\" float32[4,2]");
  EXPECT_EQ(first([](Parameters& parameters, Parameter& extra, auto&) {
              parameters[1] = extra;
              parameters[1].name = "p1";
            }),
            "data_parallel: parameter 1: rank 10 has \"p1\" float64[4], rank "
            "0 has \"p1\" float32[4,2]");
  EXPECT_EQ(first([](Parameters& parameters, Parameter& extra, auto&) {
              extra.name = "p2";
              parameters.push_back(extra);
            }),
            "data_parallel: rank 10 has parameter 2 \"p2\" float64[4], rank 0 "
            "has buffer 0 \"mean\" float32[2]");
  EXPECT_EQ(first([](auto&, auto&, DataParallelOptions& options) {
              options.buffers.clear();
            }),
            "data_parallel: rank 10 has option bucket_bytes 26214400, rank 0 "
            "has buffer 0 \"mean\" float32[2]");
  EXPECT_EQ(first([](auto&, auto&, DataParallelOptions& options) {
              options.hook = MakeInt8CompressHook();
            }),
            "data_parallel: option hook: rank 10 has int8_compress, rank 0 has "
            "all_reduce");
  EXPECT_EQ(first([](auto&, auto&, DataParallelOptions& options) {
              options.static_graph = true;
            }),
            "data_parallel: option static_graph: rank 10 has 1, rank 0 has 0");
}

TEST(DataParallelStepsTest, BadArgumentsOfOneRankAreAnErrorOnAllRanks) {
  LocalGroups groups(2);
  float memory[4] = {};
  const auto error = [&](const std::vector<Parameter>& bad,
                         const DataParallelOptions& bad_options = {}) {
    return GetErrors(groups, [&](const auto& group, int rank) {
      Model good(Shapes(1, {{3}}));
      DataParallelOptions options =
          rank == 1 ? bad_options : DataParallelOptions{};
      options.group = group;
      const DataParallel model(rank == 1 ? bad : good.parameters(), options);
    })[0];
  };
  const Tensor value(memory, {4});
  EXPECT_EQ(error({}), "data_parallel: rank 10: no parameters");
  EXPECT_EQ(error({{"a", value}, {"a", value}}),
            "data_parallel: rank 10: two parameters are called \"a\"");
  EXPECT_EQ(error({{"a", value, Tensor(memory, {2, 2})}}),
            "data_parallel: rank 10: parameter \"a\" is float32[4], but its "
            "gradient is float32[2,2]");
  EXPECT_EQ(error({{"a", Tensor(memory, DataType::kInt32, {4})}}),
            "data_parallel: rank 10: parameter \"a\" is int32[4]: float16, "
            "bfloat16, float32 or float64 and elements are needed");
  EXPECT_EQ(error({{"a", Tensor(memory, {0})}}),
            "data_parallel: rank 10: parameter \"a\" is float32[0]: float16, "
            "bfloat16, float32 or float64 and elements are needed");
  EXPECT_EQ(error({{"a", Tensor(memory, {4}, {DeviceType::kCuda, 1})}}),
            "data_parallel: rank 10: parameter \"a\" is float32[4] on cuda:1: "
            "only CPU tensors are implemented");
  EXPECT_THAT(error({{"a", Tensor(memory, {-1})}}),
              HasSubstr("rank 10: parameter \"a\": negative dimension"));
  EXPECT_EQ(error({{"a", value}}, {.bucket_bytes = 0}),
            "data_parallel: rank 10: option bucket_bytes must be at least 1 "
            "but was 0");
  EXPECT_EQ(
      error({{"a", value}}, {.first_bucket_bytes = -1}),
      "data_parallel: rank 10: option first_bucket_bytes must be at least 1 "
      "but was -1");
  EXPECT_THAT(error({{"a", value}}, {.buffers = {{"b", Tensor(memory, {-2})}}}),
              HasSubstr("rank 10: buffer \"b\": negative dimension"));
  EXPECT_EQ(
      error({{"a", value}},
            {.buffers = {{"b", Tensor(memory, {4}, {DeviceType::kCuda, 0})}}}),
      "data_parallel: rank 10: buffer \"b\" is float32[4] on cuda:0: only CPU "
      "tensors are implemented");
  EXPECT_EQ(error({{"a", value, value}}),
            "data_parallel: rank 10: parameter \"a\" and the gradient of "
            "parameter \"a\" have the same memory");
  // Its last element is the first of the other.
  EXPECT_EQ(error({{"a", Tensor(memory + 1, {3})}, {"b", Tensor(memory, {2})}}),
            "data_parallel: rank 10: parameter \"b\" and parameter \"a\" have "
            "the same memory");
  EXPECT_EQ(
      error({{"a", Tensor(memory, {2})}},
            {.buffers = {{"b", Tensor(memory + 2, {2})},
                         {"c", Tensor(memory + 3, {1})}}}),
      "data_parallel: rank 10: buffer \"b\" and buffer \"c\" have the same "
      "memory");
}

TEST(DataParallelStepsTest, OutsideTheGroupNothingHappens) {
  Model memory(Shapes(1, {{3}}));
  DataParallel model(memory.parameters(), {.group = LocalGroups::NonMember()});
  model.BeginStep();
  model.Ready(0);
  model.FinishStep();
  model.ShadowStep();
  EXPECT_EQ(model.Gradient(0).data(), memory.parameters()[0].gradient.data());
  EXPECT_EQ(model.logging_data().num_iterations, 0);
}

TEST(DataParallelStepsTest, ARankThatLeavesInAStepIsAnErrorOnTheOthers) {
  LocalGroups groups(3);
  const auto errors = groups.OnEachRank([&](const auto& group, int rank) {
    Model memory(Shapes(6, {{1000}}));
    DataParallel model(memory.parameters(), SmallBuckets(group));
    for (int step = 0; step < 2; ++step) {
      for (size_t i = 0; i < 6; ++i) {
        if (rank == 1 && step == 1 && i == 3) return groups.Leave(1);
        GiveSamples(model, rank, step, i);
      }
      model.FinishStep();
    }
  });
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[0], HasSubstr("rank 10"));
  EXPECT_THAT(errors[2], HasSubstr("rank 10"));
}

void Compute(std::chrono::milliseconds time) {
  const Instant end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

// Lets the test wait for a bucket.
class FutureHook : public CommunicationHook {
 public:
  std::string Describe() const override { return "future"; }
  HookStage Start(const GradBucket& bucket) override {
    Work work = bucket.group->AllReduce(bucket.buffer, {.async_op = true});
    last = work.GetFuture();
    return work;
  }
  std::optional<Future<std::vector<Tensor>>> last;
};

TEST(DataParallelStepsTest, TheTimeWithoutABucketUnderWayIsNoCommunication) {
  LocalGroups groups(1);
  Model memory({{{100}}, {{50}}});
  const auto hook = std::make_shared<FutureHook>();
  DataParallelOptions options = SmallBuckets(groups.at(0));
  options.hook = hook;
  DataParallel model(memory.parameters(), options);
  constexpr auto kComputeTime = std::chrono::milliseconds(100);
  for (int step = 0; step < 2; ++step) {
    const Instant begin = Clock::now();
    model.Ready(1);
    hook->last->Wait();
    Compute(kComputeTime);
    model.Ready(0);
    model.FinishStep();
    const auto all = Clock::now() - begin;
    const DataParallel::Times& times = model.logging_data().last;
    EXPECT_GE(times.backward_compute_time, kComputeTime);
    EXPECT_GT(times.backward_comm_time.count(), 0);
    EXPECT_LE(times.backward_comm_time, all - kComputeTime);
    EXPECT_LE(times.backward_compute_comm_overlap_time, all - kComputeTime);
    EXPECT_EQ(
        times.exposed_comm_time,
        times.backward_comm_time - times.backward_compute_comm_overlap_time);
  }
}

// Its stages wait for what the hook has started, and have no Work.
class OpaqueHook : public CommunicationHook {
 public:
  std::string Describe() const override { return "opaque"; }
  HookStage Start(const GradBucket& bucket) override {
    return HookStage([work = bucket.group->AllReduce(
                          bucket.buffer, {.async_op = true})]() mutable {
      work.Wait();
      return HookStage([] {});
    });
  }
};

TEST(DataParallelStepsTest, WithoutAWorkABucketIsUnderWayUntilItsStageHasRun) {
  LocalGroups groups(1);
  Model memory({{{100}}, {{50}}});
  DataParallelOptions options = SmallBuckets(groups.at(0));
  options.hook = std::make_shared<OpaqueHook>();
  DataParallel model(memory.parameters(), options);
  constexpr auto kComputeTime = std::chrono::milliseconds(20);
  model.Ready(1);
  Compute(kComputeTime);
  model.Ready(0);
  model.FinishStep();
  const DataParallel::Times& times = model.logging_data().last;
  EXPECT_GE(times.backward_compute_comm_overlap_time, kComputeTime);
  EXPECT_LE(times.backward_compute_comm_overlap_time,
            times.backward_compute_time);
}

TEST(DataParallelStepsTest, TheProcessCountsWhatLoggingDataSays) {
  LocalGroups groups(1);
  worker::DataParallelTotals& totals =
      worker::FindDataParallelTotals("bf16_compress");
  const int64_t steps = totals.steps;
  const int64_t compute = totals.compute_time;
  const int64_t communication = totals.communication_time;
  const int64_t overlap = totals.overlap_time;
  const int64_t exposed = totals.exposed_time;
  const int64_t buckets = totals.buckets;
  const int64_t bytes = totals.bucket_bytes;
  {
    Model memory({{{100}}, {{50}}});
    DataParallelOptions options = SmallBuckets(groups.at(0));
    options.hook = MakeBf16CompressHook();
    DataParallel model(memory.parameters(), options);
    for (int step = 0; step < 3; ++step) {
      GiveSamples(model, 0, step, 0);
      GiveSamples(model, 0, step, 1);
      model.FinishStep();
    }
    model.ShadowStep();
    const DataParallel::Times& average = model.logging_data().average;
    EXPECT_EQ(totals.steps - steps, 4);
    EXPECT_NEAR(totals.compute_time - compute,
                3 * average.backward_compute_time.count(), 3);
    EXPECT_NEAR(totals.communication_time - communication,
                3 * average.backward_comm_time.count(), 3);
    EXPECT_NEAR(totals.overlap_time - overlap,
                3 * average.backward_compute_comm_overlap_time.count(), 3);
    EXPECT_NEAR(totals.exposed_time - exposed,
                3 * average.exposed_comm_time.count(), 3);
    EXPECT_EQ(totals.buckets - buckets, 2);
    EXPECT_EQ(totals.bucket_bytes - bytes, 600);
  }
  EXPECT_EQ(totals.buckets, buckets);
  EXPECT_EQ(totals.bucket_bytes, bytes);
}

TEST(DataParallelStepsTest, LoggingDataHasSizesAndTimes) {
  LocalGroups groups(2);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory({{{100}}, {{50}}});
    DataParallelOptions options = SmallBuckets(group);
    options.hook = MakeBf16CompressHook();
    DataParallel model(memory.parameters(), options);
    for (int step = 0; step < 3; ++step) {
      GiveSamples(model, rank, step, 1);
      GiveSamples(model, rank, step, 0);
      model.FinishStep();
    }
    model.ShadowStep();
    const DataParallel::LoggingData data = model.logging_data();
    EXPECT_EQ(data.rank, rank);
    EXPECT_EQ(data.world_size, 2);
    EXPECT_EQ(data.comm_hook, "bf16_compress");
    EXPECT_EQ(data.parameter_count, 2u);
    EXPECT_EQ(data.total_parameter_bytes, 600);
    EXPECT_THAT(data.bucket_sizes, ElementsAre(200, 400));
    EXPECT_FALSE(data.has_symmetric_buckets);
    EXPECT_EQ(data.symmetric_bucket_count, 0u);
    EXPECT_EQ(data.num_iterations, 4);
    EXPECT_THAT(data.unused_parameters, IsEmpty());
    for (const DataParallel::Times& times : {data.last, data.average}) {
      EXPECT_GT(times.backward_compute_time.count(), 0);
      // The first bucket has started before the last Ready.
      EXPECT_GT(times.backward_compute_comm_overlap_time.count(), 0);
      EXPECT_LT(times.backward_compute_comm_overlap_time,
                times.backward_comm_time);
      EXPECT_GT(times.exposed_comm_time.count(), 0);
      EXPECT_LT(times.exposed_comm_time, times.backward_comm_time);
    }
  }),
              Each(""));
}

class LogLines : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int, const tm*,
            const char* message, size_t length) override {
    lines.emplace_back(message, length);
  }
  std::vector<std::string> lines;
};

TEST(DataParallelStepsTest, DebugLevelsLogTheBucketsAndTheTimesOf100Steps) {
  LocalGroups groups(1);
  for (const DebugLevel level :
       {DebugLevel::kOff, DebugLevel::kInfo, DebugLevel::kDetail}) {
    SetDebugLevel(level);
    const LogLines log;
    Model memory({{{4}}, {{2}}});
    DataParallel model(memory.parameters(), {.group = groups.at(0)});
    for (int step = 0; step < 100; ++step) {
      model.Ready(1);
      model.Ready(0);
      model.FinishStep();
    }
    std::vector<std::string> ours;
    for (const std::string& line : log.lines) {
      if (line.starts_with("data parallel")) ours.push_back(line);
    }
    ASSERT_EQ(ours.size(), static_cast<size_t>(level));
    if (level == DebugLevel::kOff) continue;
    EXPECT_EQ(ours[0],
              "data parallel built: rank=0 world_size=1 hook=all_reduce "
              "parameters=2 bytes=24 bucket_sizes=24 symmetric=0");
    if (level == DebugLevel::kInfo) continue;
    EXPECT_THAT(ours[1], HasSubstr("data parallel steps: rank=0 steps=100 "
                                   "backward_compute="));
    EXPECT_THAT(ours[1], HasSubstr(" unused=0"));
  }
  SetDebugLevel(DebugLevel::kOff);
}

}  // namespace
}  // namespace muster
