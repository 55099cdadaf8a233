#include "muster/communication_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "client/parallel/data/testing/model.h"
#include "client/testing/local_groups.h"
#include "muster/data_parallel.h"
#include "muster/errors.h"

namespace muster {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LocalGroups;
using testing::Model;

using MakeHook = std::function<std::shared_ptr<CommunicationHook>()>;
using Numbers = std::vector<double>;
using Shapes = std::vector<Model::Shape>;

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat64,
                               DataType::kFloat16, DataType::kBfloat16};

// Gives the gradient of one rank in one step.
using Gradient = std::function<Numbers(int rank, int step, size_t count)>;

// Trains one parameter, in a bucket of its own, and returns the averages of
// each step, which must be equal on all ranks.
std::vector<Numbers> Average(LocalGroups& groups, int ranks,
                             const MakeHook& make_hook, int steps,
                             const Model::Shape& shape,
                             const Gradient& gradient) {
  std::vector<std::vector<Numbers>> results(static_cast<size_t>(ranks));
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory({shape});
    DataParallel model(memory.parameters(),
                       {.group = group, .hook = make_hook()});
    const Tensor mine = model.Gradient(0);
    for (int step = 0; step < steps; ++step) {
      testing::SetNumbers(
          mine,
          gradient(rank, step, static_cast<size_t>(mine.element_count())));
      model.Ready(0);
      model.FinishStep();
      results[static_cast<size_t>(rank)].push_back(testing::GetNumbers(mine));
    }
  }),
              Each(""));
  const auto bits = [](const std::vector<Numbers>& all) {
    std::vector<std::vector<uint64_t>> result;
    for (const Numbers& numbers : all) {
      auto& last = result.emplace_back();
      for (const double each : numbers) {
        last.push_back(std::bit_cast<uint64_t>(each));
      }
    }
    return result;
  };
  for (const auto& result : results) EXPECT_EQ(bits(result), bits(results[0]));
  return results[0];
}

Numbers GetSamples(int rank, int step, size_t count) {
  Numbers samples(count);
  for (size_t i = 0; i < count; ++i) {
    samples[i] = testing::GetSample(rank, step, 0, i);
  }
  return samples;
}

// The largest difference from the average of `gradient`.
double ComputeError(const Numbers& result, int ranks, int step,
                    const Gradient& gradient) {
  Numbers exact(result.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const Numbers each = gradient(rank, step, result.size());
    for (size_t i = 0; i < exact.size(); ++i) exact[i] += each[i] / ranks;
  }
  double error = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error = std::max(error, std::abs(result[i] - exact[i]));
  }
  return error;
}

struct HookCase {
  std::string name;
  MakeHook make;
  // For gradients between -1 and 1.
  double tolerance;
};

std::vector<HookCase> MakeCases() {
  return {
      {"default", [] { return nullptr; }, 1e-6},
      {"all_reduce", MakeAllReduceHook, 1e-6},
      {"fp16", MakeFp16CompressHook, 2 * 0x1p-11},
      {"bf16", MakeBf16CompressHook, 2 * 0x1p-8},
      {"int8", MakeInt8CompressHook, 2.0 / 254},
      {"fp8", MakeFp8CompressHook, 2.0 / 16},
      // All matrices here are too small to be compressed.
      {"power_sgd",
       [] { return MakePowerSgdHook({.rank = 8, .start_step = 0}); }, 1e-6}};
}

class HookTest : public ::testing::TestWithParam<int> {};

TEST_P(HookTest, AveragesEveryTypeAndSizeWithinItsRounding) {
  const int ranks = GetParam();
  LocalGroups groups(ranks);
  for (const HookCase& hook : MakeCases()) {
    for (const DataType type : kTypes) {
      for (const std::vector<int64_t>& sizes :
           std::vector<std::vector<int64_t>>{
               {}, {1}, {257}, {3, 5}, {40, 2, 13}}) {
        const std::vector<Numbers> results =
            Average(groups, ranks, hook.make, 2, {.sizes = sizes, .type = type},
                    GetSamples);
        for (int step = 0; step < 2; ++step) {
          // In the second step the errors of the first come on top.
          EXPECT_LE(
              ComputeError(results[static_cast<size_t>(step)], ranks, step,
                           GetSamples),
              (1 + step) * hook.tolerance + 2 * testing::GetRounding(type))
              << hook.name << " " << DataTypeName(type) << " " << sizes.size();
        }
      }
    }
  }
}

TEST_P(HookTest, FollowsBucketsThatAreBuiltAnew) {
  const int ranks = GetParam();
  LocalGroups groups(ranks);
  std::vector<HookCase> cases = MakeCases();
  cases.push_back({"power_sgd of full rank",
                   [] {
                     return MakePowerSgdHook({.rank = 5,
                                              .start_step = 0,
                                              .min_compression_rate = 1});
                   },
                   1e-5});
  for (const HookCase& hook : cases) {
    EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      Model memory({{{5, 100}}, {{700}}, {{3, 11}}});
      DataParallel model(memory.parameters(), {.group = group,
                                               .bucket_bytes = 1,
                                               .first_bucket_bytes = 1,
                                               .hook = hook.make()});
      for (int step = 0; step < 3; ++step) {
        for (const size_t parameter : {1, 0, 2}) {
          testing::GiveSamples(model, rank, step, parameter);
        }
        model.FinishStep();
        for (size_t parameter = 0; parameter < 3; ++parameter) {
          const Numbers numbers =
              testing::GetNumbers(model.Gradient(parameter));
          for (size_t i = 0; i < numbers.size(); ++i) {
            ASSERT_NEAR(numbers[i],
                        testing::GetAverage(ranks, step, parameter, i),
                        (1 + step) * hook.tolerance)
                << hook.name << " step " << step;
          }
        }
      }
      EXPECT_TRUE(model.logging_data().has_rebuilt_buckets);
    }),
                Each(""));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, HookTest, ::testing::Values(1, 2, 3, 4));

// The average over the steps of a constant gradient, which errors that are not
// made good would keep away from the gradient.
TEST(CommunicationHooksTest, ErrorFeedbackMakesGoodWhatRoundingLost) {
  constexpr int kRanks = 3;
  constexpr int kSteps = 60;
  LocalGroups groups(kRanks);
  const Gradient constant = [](int rank, int, size_t count) {
    return GetSamples(rank, 0, count);
  };
  for (const auto& [make, gain] : std::vector<std::pair<MakeHook, double>>{
           {MakeInt8CompressHook, 10},
           {MakeFp8CompressHook, 10},
           {[] { return MakePowerSgdHook({.start_step = 0}); }, 5}}) {
    const std::vector<Numbers> results =
        Average(groups, kRanks, make, kSteps, {.sizes = {25, 21}}, constant);
    Numbers mean(results[0].size(), 0);
    for (const Numbers& result : results) {
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += result[i] / kSteps;
    }
    EXPECT_LT(ComputeError(mean, kRanks, 0, constant) * gain,
              ComputeError(results[0], kRanks, 0, constant))
        << make()->Describe();
  }
}

TEST(CommunicationHooksTest, Fp16DoesNotOverflowWhileItAdds) {
  LocalGroups groups(4);
  const auto results =
      Average(groups, 4, MakeFp16CompressHook, 1, {.sizes = {1000}},
              [](int, int, size_t count) { return Numbers(count, 60000); });
  EXPECT_EQ(results[0], Numbers(1000, 60000));
}

// u v', of rank 1.
Numbers MakeProduct(int rank, int step, size_t rows, size_t columns) {
  Numbers product;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      product.push_back(testing::GetSample(rank, step, 1, row) *
                        testing::GetSample(rank, step, 2, 5 * column));
    }
  }
  return product;
}

TEST(CommunicationHooksTest, PowerSgdIsExactForMatricesOfItsRank) {
  // The average of two matrices of rank 1 has rank 2.
  LocalGroups groups(2);
  const Gradient gradient = [](int rank, int step, size_t) {
    return MakeProduct(rank, step, 30, 40);
  };
  const auto make = [](int64_t rank) {
    return [rank] { return MakePowerSgdHook({.rank = rank, .start_step = 0}); };
  };
  const auto exact =
      Average(groups, 2, make(2), 3, {.sizes = {30, 5, 8}}, gradient);
  for (int step = 0; step < 3; ++step) {
    EXPECT_LT(ComputeError(exact[static_cast<size_t>(step)], 2, step, gradient),
              1e-5);
  }
  const auto rough =
      Average(groups, 2, make(1), 1, {.sizes = {30, 40}}, gradient);
  EXPECT_GT(ComputeError(rough[0], 2, 0, gradient), 0.05);
}

TEST(CommunicationHooksTest, PowerSgdFindsTheLargestPartByItsWarmStart) {
  // A large part of rank 1 and a small one. Without error feedback's help the
  // first step mixes them; later ones have turned to the large one.
  LocalGroups groups(1);
  const Gradient gradient = [](int, int step, size_t) {
    Numbers sum = MakeProduct(0, 0, 30, 40);
    const Numbers small = MakeProduct(1, 7 + step, 30, 40);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += 0.2 * small[i];
    return sum;
  };
  const auto results = Average(
      groups, 1, [] { return MakePowerSgdHook({.start_step = 0}); }, 2,
      {.sizes = {30, 40}}, gradient);
  const Numbers large = MakeProduct(0, 0, 30, 40);
  const auto distance = [&](const Numbers& from) {
    double sum = 0;
    for (size_t i = 0; i < large.size(); ++i) {
      sum += std::pow(from[i] - large[i], 2);
    }
    return std::sqrt(sum / static_cast<double>(large.size()));
  };
  EXPECT_LT(distance(results[1]), 0.15);
}

TEST(CommunicationHooksTest, PowerSgdAveragesExactlyBeforeItsStartStep) {
  LocalGroups groups(2);
  const auto results = Average(
      groups, 2, [] { return MakePowerSgdHook({.start_step = 2}); }, 3,
      {.sizes = {30, 40}}, GetSamples);
  EXPECT_LT(ComputeError(results[0], 2, 0, GetSamples), 1e-6);
  EXPECT_LT(ComputeError(results[1], 2, 1, GetSamples), 1e-6);
  EXPECT_GT(ComputeError(results[2], 2, 2, GetSamples), 1e-3);
}

TEST(CommunicationHooksTest, PowerSgdRecoversFromAStepOfZeros) {
  LocalGroups groups(2);
  const Gradient gradient = [](int, int step, size_t count) {
    // A matrix of rank 1, exact if the first factor is not zero.
    return step < 2 ? Numbers(count, 0) : MakeProduct(7, step, 30, 40);
  };
  const auto results = Average(
      groups, 2, [] { return MakePowerSgdHook({.start_step = 0}); }, 3,
      {.sizes = {30, 40}}, gradient);
  EXPECT_EQ(results[1], Numbers(1200, 0));
  EXPECT_LT(ComputeError(results[2], 2, 2, gradient), 1e-5);
}

TEST(CommunicationHooksTest, AnInfinityShowsOnAllRanksAndInThatStepAlone) {
  LocalGroups groups(3);
  const Gradient gradient = [](int rank, int step, size_t count) {
    Numbers samples = GetSamples(rank, step, count);
    if (rank == 1 && step == 0) {
      samples[3] = std::numeric_limits<double>::infinity();
    }
    return samples;
  };
  for (const auto& make : std::vector<MakeHook>{
           MakeInt8CompressHook, MakeFp8CompressHook,
           [] { return MakePowerSgdHook({.start_step = 0}); }}) {
    const auto results =
        Average(groups, 3, make, 2, {.sizes = {30, 40}}, gradient);
    EXPECT_TRUE(std::isnan(results[0][3])) << make()->Describe();
    for (const double each : results[1]) ASSERT_TRUE(std::isfinite(each));
  }
}

TEST(CommunicationHooksTest, BadOptionsOfPowerSgdAreNamed) {
  const auto text = [](const PowerSgdOptions& options) -> std::string {
    try {
      MakePowerSgdHook(options);
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
      return error.status().message();
    }
    return "";
  };
  EXPECT_EQ(text({.rank = 0}),
            "PowerSgdOptions::rank must be at least 1 but was 0");
  EXPECT_EQ(text({.start_step = -1}),
            "PowerSgdOptions::start_step must not be negative but was -1");
  EXPECT_EQ(text({.min_compression_rate = 0.5}),
            "PowerSgdOptions::min_compression_rate must be at least 1 but was "
            "0.5");
}

// One step has a gradient, the next does not use the parameter, and the others
// have zeros: what a rank keeps of the first step comes in the others.
TEST(CommunicationHooksTest, WhatIsKeptOutlivesAStepWithoutTheParameter) {
  for (const auto& make : std::vector<MakeHook>{
           MakeInt8CompressHook, MakeFp8CompressHook,
           [] { return MakePowerSgdHook({.start_step = 0}); }}) {
    for (const bool in_buckets : {false, true}) {
      LocalGroups groups(2);
      EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
        Model memory(Shapes(2, {{16, 16}}), in_buckets);
        DataParallel model(
            memory.parameters(),
            {.group = group, .find_unused_parameters = true, .hook = make()});
        Numbers sum(256);
        double largest_at_first = 0;
        for (int step = 0; step < 40; ++step) {
          if (step == 0) {
            testing::GiveSamples(model, rank, 0, 0);
          } else if (step > 1) {
            testing::SetNumbers(model.Gradient(0), Numbers(256));
            model.Ready(0);
          }
          testing::SetNumbers(model.Gradient(1), Numbers(256));
          model.Ready(1);
          model.FinishStep();
          if (step == 1) continue;
          const Numbers average = testing::GetNumbers(model.Gradient(0));
          for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] += average[i];
            if (step > 0) continue;
            largest_at_first =
                std::max(largest_at_first,
                         std::abs(sum[i] - testing::GetAverage(2, 0, 0, i)));
          }
        }
        double largest = 0;
        for (size_t i = 0; i < sum.size(); ++i) {
          largest = std::max(
              largest, std::abs(sum[i] - testing::GetAverage(2, 0, 0, i)));
        }
        EXPECT_LT(20 * largest, largest_at_first) << make()->Describe();
      }),
                  Each(""));
    }
  }
}

// Writes down what is called, and sums instead of averaging.
class SummingHook : public CommunicationHook {
 public:
  explicit SummingHook(std::vector<std::string>& calls) : calls_(calls) {}

  std::string Describe() const override { return "summing"; }

  HookStage Start(const GradBucket& bucket) override {
    calls_.push_back("start " + std::to_string(bucket.index) +
                     (bucket.is_last ? " last" : ""));
    auto half = [this, &bucket,
                 work = bucket.group->AllReduce(bucket.buffer,
                                                {.async_op = true})]() mutable {
      work.Wait();
      calls_.push_back("first " + std::to_string(bucket.index));
      return HookStage(
          [this, &bucket,
           work = bucket.group->Barrier({.async_op = true})]() mutable {
            work.Wait();
            calls_.push_back("second " + std::to_string(bucket.index));
          });
    };
    return half;
  }

  void BucketsRebuilt() override { calls_.push_back("rebuilt"); }

 private:
  std::vector<std::string>& calls_;
};

TEST(CommunicationHooksTest, StagesOfAHookOfTheProgramRunInTheBucketsOrder) {
  LocalGroups groups(2);
  std::vector<std::vector<std::string>> calls(2);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory({{{4}}, {{2}}});
    DataParallel model(memory.parameters(),
                       {.group = group,
                        .bucket_bytes = 1,
                        .first_bucket_bytes = 1,
                        .hook = std::make_shared<SummingHook>(
                            calls[static_cast<size_t>(rank)])});
    // On rank 1 they come in the buckets' order; on rank 0 not.
    testing::GiveSamples(model, rank, 0, rank == 0 ? 0 : 1);
    testing::GiveSamples(model, rank, 0, rank == 0 ? 1 : 0);
    model.FinishStep();
    const Numbers sum = testing::GetNumbers(model.Gradient(0));
    for (size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(sum[i], 2 * testing::GetAverage(2, 0, 0, i), 1e-6);
    }
  }),
              Each(""));
  EXPECT_THAT(calls,
              Each(ElementsAre("rebuilt", "start 0", "start 1 last", "first 0",
                               "first 1", "second 0", "second 1", "rebuilt")));
}

class ThrowingHook : public CommunicationHook {
 public:
  std::string Describe() const override { return "throwing"; }
  HookStage Start(const GradBucket&) override {
    throw std::runtime_error("no");
  }
};

TEST(CommunicationHooksTest, AfterAHookHasThrownAllCallsThrowTheSame) {
  LocalGroups groups(1);
  Model memory(Shapes(1, {{4}}));
  DataParallel model(
      memory.parameters(),
      {.group = groups.at(0), .hook = std::make_shared<ThrowingHook>()});
  EXPECT_THROW(model.Ready(0), std::runtime_error);
  EXPECT_THROW(model.Ready(0), std::runtime_error);
  EXPECT_THROW(model.FinishStep(), std::runtime_error);
  EXPECT_THROW(model.BeginStep(), std::runtime_error);
  EXPECT_THROW(model.ShadowStep(), std::runtime_error);
}

class ThrowingOnRank0Hook : public CommunicationHook {
 public:
  std::string Describe() const override { return "throwing_on_rank_0"; }
  HookStage Start(const GradBucket& bucket) override {
    if (bucket.group->rank() == 0) throw std::runtime_error("no luck");
    return all_reduce_->Start(bucket);
  }

 private:
  std::shared_ptr<CommunicationHook> all_reduce_ = MakeAllReduceHook();
};

TEST(CommunicationHooksTest, WhatAHookThrowsEndsTheOtherRanks) {
  LocalGroups groups(2);
  const std::vector<std::string> errors =
      groups.OnEachRank([&](const auto& group, int rank) {
        Model memory(Shapes(1, {{4}}));
        DataParallel model(
            memory.parameters(),
            {.group = group, .hook = std::make_shared<ThrowingOnRank0Hook>()});
        if (rank == 0) {
          EXPECT_THROW(model.Ready(0), std::runtime_error);
          return;
        }
        model.Ready(0);
        model.FinishStep();
      });
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(errors[1], ::testing::HasSubstr("rank 0"));
}

// Another model, with larger buckets, in which the hook's state has no meaning.
TEST(CommunicationHooksTest, AHookServesOneDataParallelAfterAnother) {
  for (const auto& hook :
       {MakeInt8CompressHook(), MakePowerSgdHook({.start_step = 0})}) {
    LocalGroups groups(1);
    for (const int64_t size : {8, 4096}) {
      Model memory(Shapes(1, {{size, 8}}));
      DataParallel model(memory.parameters(),
                         {.group = groups.at(0), .hook = hook});
      model.Ready(0);
      model.FinishStep();
    }
  }
}

}  // namespace
}  // namespace muster
