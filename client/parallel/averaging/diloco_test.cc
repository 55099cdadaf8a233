// DiLoCo among ranks that are threads, against a single process in double.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/averaging.h"
#include "muster/errors.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Group = std::shared_ptr<ProcessGroup>;
using Values = std::vector<double>;

constexpr double kRate = 0.2;
constexpr int kSteps = 25;
// The numbers of elements of the parameters.
constexpr int kCounts[] = {3, 1, 5, 2};
constexpr size_t kParameters = 4;

// Every rank has a target of its own for each element.
double GetTarget(size_t rank, size_t parameter, size_t element) {
  return static_cast<double>((7 * rank + 5 * parameter + 3 * element) % 11) - 5;
}

// One step of gradient descent towards the targets.
template <typename T>
void Descend(size_t rank, size_t parameter, std::vector<T>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] -= static_cast<T>(kRate) *
                 (values[i] - static_cast<T>(GetTarget(rank, parameter, i)));
  }
}

// The parameters of all ranks after each step: by step, rank and parameter.
std::vector<std::vector<std::vector<Values>>> TrainReference(
    size_t ranks, const DiLoCoOptions& options) {
  std::vector<std::vector<Values>> weights(ranks);
  std::vector<Values> outer;
  std::vector<Values> momentum;
  for (const int count : kCounts) {
    outer.emplace_back(count, 4);
    momentum.emplace_back(count, 0);
    for (auto& rank : weights) rank.emplace_back(count, 4);
  }
  std::vector<std::vector<std::vector<Values>>> steps;
  for (int step = 1; step <= kSteps; ++step) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (size_t p = 0; p < kParameters; ++p)
        Descend(rank, p, weights[rank][p]);
    }
    for (size_t p = 0; p < kParameters; ++p) {
      const int fragment = static_cast<int>(p) % options.fragments;
      const auto at = (fragment + 1) * options.period / options.fragments;
      if (step % options.period != at % options.period) continue;
      for (size_t i = 0; i < outer[p].size(); ++i) {
        double gradient = 0;
        for (size_t rank = 0; rank < ranks; ++rank) {
          gradient +=
              (outer[p][i] - weights[rank][p][i]) / static_cast<double>(ranks);
        }
        double& m = momentum[p][i];
        m = options.outer_momentum * m + gradient;
        outer[p][i] -= options.outer_learning_rate *
                       (gradient + options.outer_momentum * m);
        for (size_t rank = 0; rank < ranks; ++rank) {
          weights[rank][p][i] = outer[p][i];
        }
      }
    }
    steps.push_back(weights);
  }
  return steps;
}

template <typename T>
void ExpectReference(int size, DiLoCoOptions options, double tolerance) {
  const auto expected = TrainReference(static_cast<size_t>(size), options);
  LocalGroups world(size);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    const auto r = static_cast<size_t>(rank);
    std::vector<std::vector<T>> weights;
    std::vector<Tensor> parameters;
    // Rank 0's go to all.
    for (const int count : kCounts) {
      weights.emplace_back(count, static_cast<T>(rank == 0 ? 4 : 77));
    }
    for (auto& one : weights) parameters.emplace_back(one);
    DiLoCoOptions mine = options;
    mine.group = group;
    auto diloco = std::make_unique<DiLoCo>(parameters, mine);
    for (int step = 0; step < kSteps; ++step) {
      for (size_t p = 0; p < kParameters; ++p) Descend(r, p, weights[p]);
      diloco->Step();
      EXPECT_EQ(diloco->step(), step + 1);
      for (size_t p = 0; p < kParameters; ++p) {
        for (size_t i = 0; i < weights[p].size(); ++i) {
          EXPECT_NEAR(weights[p][i],
                      expected[static_cast<size_t>(step)][r][p][i], tolerance)
              << "step " << step << " parameter " << p;
        }
      }
      if (step != kSteps / 2) continue;
      // Resumes in the middle, from what a checkpoint would have.
      std::vector<std::vector<T>> saved;
      for (const Tensor& tensor : diloco->state()) {
        const auto* const values = static_cast<const T*>(tensor.data());
        saved.emplace_back(values, values + tensor.element_count());
      }
      mine.first_step = diloco->step();
      const auto kept = weights;
      diloco = std::make_unique<DiLoCo>(parameters, mine);
      for (size_t p = 0; p < kParameters; ++p) {
        std::copy(kept[p].begin(), kept[p].end(), weights[p].begin());
      }
      const std::vector<Tensor> state = diloco->state();
      ASSERT_EQ(state.size(), saved.size());
      for (size_t i = 0; i < saved.size(); ++i) {
        std::copy(saved[i].begin(), saved[i].end(),
                  static_cast<T*>(state[i].data()));
      }
    }
  }),
              Each(""));
}

class DiLoCoTest : public ::testing::TestWithParam<int> {};

TEST_P(DiLoCoTest, TrainsLikeTheReference) {
  for (const int fragments : {1, 3}) {
    ExpectReference<double>(GetParam(), {.period = 5, .fragments = fragments},
                            1e-11);
    ExpectReference<float>(GetParam(), {.period = 5, .fragments = fragments},
                           1e-4);
  }
  ExpectReference<double>(
      GetParam(),
      {.period = 1, .outer_learning_rate = 0.5, .outer_momentum = 0.25}, 1e-11);
}

INSTANTIATE_TEST_SUITE_P(All, DiLoCoTest, ::testing::Values(1, 2, 3, 4));

TEST(DiLoCoTest, FragmentsHaveTheirStepsAtDifferentTimes) {
  LocalGroups world(1);
  std::vector<float> a(1);
  std::vector<float> b(1);
  std::vector<float> c(1);
  DiLoCo diloco({a, b, c}, {.period = 7, .fragments = 3, .group = world.at(0)});
  std::vector<int64_t> at;
  while (diloco.step() < 15) {
    if (diloco.Step()) at.push_back(diloco.step());
  }
  EXPECT_THAT(at, ElementsAre(2, 4, 7, 9, 11, 14));
}

TEST(DiLoCoTest, NarrowParametersHaveAWideOuterCopy) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    std::vector<uint16_t> brain = {0x3f80};  // 1
    std::vector<uint16_t> half = {0x3c00};   // 1
    std::vector<double> wide = {1};
    DiLoCo diloco({Tensor(brain.data(), DataType::kBfloat16, {1}),
                   Tensor(half.data(), DataType::kFloat16, {1}), wide},
                  {.period = 1, .outer_momentum = 0, .group = group});
    // The average is 2.
    brain = {static_cast<uint16_t>(rank == 0 ? 0x3f80 : 0x4040)};  // 1, 3
    half = {static_cast<uint16_t>(rank == 0 ? 0x3c00 : 0x4200)};
    wide = {rank == 0 ? 1.0 : 3.0};
    EXPECT_TRUE(diloco.Step());
    // 1.7, rounded.
    EXPECT_EQ(brain[0], 0x3fda);
    EXPECT_EQ(half[0], 0x3ecd);
    EXPECT_DOUBLE_EQ(wide[0], 1.7);
    const std::vector<Tensor> state = diloco.state();
    ASSERT_EQ(state.size(), 4U);
    EXPECT_EQ(state[0].Describe(), "float32[2]");
    EXPECT_FLOAT_EQ(static_cast<const float*>(state[0].data())[0], 1.7F);
    EXPECT_EQ(state[2].Describe(), "float64[1]");
  }),
              Each(""));
}

// Each step moves the average by half of what a bfloat16 can say.
TEST(DiLoCoTest, StepsBelowTheParametersPrecisionAddUp) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    constexpr float kUlp = 0x1p-7F;              // from 1 on
    std::vector<uint16_t> parameter = {0x3f80};  // 1
    DiLoCo diloco({Tensor(parameter.data(), DataType::kBfloat16, {1})},
                  {.period = 1,
                   .outer_learning_rate = 1,
                   .outer_momentum = 0,
                   .group = group});
    const Tensor outer = diloco.state()[0];
    for (int step = 1; step <= 20; ++step) {
      if (rank == 0) ++parameter[0];
      EXPECT_TRUE(diloco.Step());
      EXPECT_EQ(*static_cast<const float*>(outer.data()),
                1 + static_cast<float>(step) * kUlp / 2);
    }
    EXPECT_EQ(parameter[0], 0x3f80 + 10);
    // Nothing moves, and nothing drifts.
    EXPECT_TRUE(diloco.Step());
    EXPECT_EQ(*static_cast<const float*>(outer.data()), 1 + 10 * kUlp);
  }),
              Each(""));
}

std::string GetError(const LocalGroups& world, const DiLoCoOptions& options,
                     StatusCode code, const std::vector<Tensor>& parameters) {
  DiLoCoOptions mine = options;
  mine.group = world.at(0);
  try {
    DiLoCo diloco(parameters, mine);
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), code);
    return error.what();
  }
  return "";
}

TEST(DiLoCoTest, RefusesBadArguments) {
  LocalGroups world(1);
  std::vector<float> memory(1);
  const auto invalid = [&](const DiLoCoOptions& options) {
    return GetError(world, options, StatusCode::kInvalidArgument, {memory});
  };
  EXPECT_EQ(invalid({.period = 0}),
            "DiLoCo: rank 0: option period must be at least 1 but was 0");
  EXPECT_EQ(invalid({.period = 2, .fragments = 3}),
            "DiLoCo: rank 0: option period must be at least 3 but was 2");
  EXPECT_EQ(invalid({.period = 2, .fragments = 0}),
            "DiLoCo: rank 0: option fragments must be at least 1 but was 0");
  EXPECT_EQ(invalid({.period = 2, .first_step = -1}),
            "DiLoCo: rank 0: option first_step must be at least 0 but was -1");
  EXPECT_EQ(invalid({.period = 2, .outer_learning_rate = -0.5}),
            "DiLoCo: rank 0: option outer_learning_rate must be at least 0 and "
            "finite but was -0.5");
  EXPECT_EQ(invalid({.period = 2, .outer_learning_rate = std::nan("")}),
            "DiLoCo: rank 0: option outer_learning_rate must be at least 0 and "
            "finite but was nan");
  EXPECT_EQ(invalid({.period = 2, .outer_momentum = 1}),
            "DiLoCo: rank 0: option outer_momentum must be at least 0 and less "
            "than 1 but was 1");
  EXPECT_EQ(invalid({.period = 2, .outer_momentum = std::nan("")}),
            "DiLoCo: rank 0: option outer_momentum must be at least 0 and less "
            "than 1 but was nan");
  EXPECT_EQ(GetError(world, {.period = 1}, StatusCode::kUnimplemented,
                     {Tensor(memory.data(), {1}, {DeviceType::kCuda, 0})}),
            "DiLoCo: rank 0: argument parameters, number 0 is float32[1] on "
            "cuda:0, only tensors on the CPU are supported");
}

TEST(DiLoCoTest, RanksMustHaveEqualOptions) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<float> memory(1);
    DiLoCo diloco({memory}, {.period = 2,
                             .outer_learning_rate = rank == 0 ? 0.7 : 0.5,
                             .group = group});
  }),
              Each("DiLoCo: option outer_learning_rate: rank 10 has 0.5, rank "
                   "0 has 0.7"));
  // All digits count.
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<float> memory(1);
    DiLoCo diloco({memory},
                  {.period = 2,
                   .outer_momentum = rank == 0 ? 0.9 : 0.9000000000000001,
                   .group = group});
  }),
              Each("DiLoCo: option outer_momentum: rank 10 has "
                   "0.9000000000000001, rank 0 has 0.9"));
}

TEST(DiLoCoTest, RanksOutsideTheGroupDoNothing) {
  std::vector<float> memory(1);
  DiLoCo diloco({memory}, {.period = 1, .group = LocalGroups::NonMember()});
  EXPECT_FALSE(diloco.Step());
  EXPECT_THAT(diloco.state(), IsEmpty());
}

TEST(DiLoCoTest, ARankThatLeavesEndsItOnAllRanks) {
  LocalGroups world(3);
  const auto texts = world.OnEachRank([&](const Group& group, int rank) {
    std::vector<float> memory(1000);
    DiLoCo diloco({memory}, {.period = 2, .group = group});
    for (int step = 0; step < 6; ++step) {
      if (rank == 1 && step == 3) world.Leave(1);
      diloco.Step();
    }
  });
  EXPECT_THAT(texts[0], HasSubstr("rank 10"));
  EXPECT_NE(texts[1], "");
  EXPECT_THAT(texts[2], HasSubstr("rank 10"));
}

}  // namespace
}  // namespace muster
