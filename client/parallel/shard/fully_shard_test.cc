#include "muster/fully_shard.h"

#include <algorithm>
#include <cmath>
#include <latch>
#include <limits>
#include <list>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/parallel/shard/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Layers of [rows, 64] float32, to follow what the memory does.
class Layers {
 public:
  Layers(int count, int64_t rows) : memory_(rows * 64) {
    std::iota(memory_.begin(), memory_.end(), 0.0F);
    for (int i = 0; i < count; ++i) {
      const std::string name = "layer" + std::to_string(i);
      groups_.push_back({name, {{name, Tensor(memory_.data(), {rows, 64})}}});
    }
  }

  const std::vector<ShardGroup>& groups() const { return groups_; }
  int count() const { return static_cast<int>(groups_.size()); }
  double layer_bytes() const { return 4.0 * memory_.size(); }
  double bytes() const { return count() * layer_bytes(); }

 private:
  std::vector<float> memory_;
  std::vector<ShardGroup> groups_;
};

void RunStep(FullyShard& model, int layers, bool reshard_after_forward) {
  for (int layer = 0; layer < layers; ++layer) {
    model.WaitUnshard(layer);
    if (reshard_after_forward) model.Reshard(layer);
  }
  for (int layer = layers - 1; layer >= 0; --layer) {
    model.WaitUnshard(layer);
    model.Gradient(layer, 0);
    model.GradientsReady(layer);
  }
  model.FinishStep();
}

// Within 5 %.
#define EXPECT_FORMULA(value, formula) \
  EXPECT_NEAR(static_cast<double>(value), formula, 0.05 * (formula))

TEST(FullyShardTest, PeakMemoryAndTrafficAreThoseOfTheFormula) {
  for (const std::string backend : {"gloo", "shm"}) {
    for (const int ranks : {1, 2, 4}) {
      for (const bool zero3 : {true, false}) {
        for (const bool bfloat16 : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << backend << " " << ranks << " " << zero3 << bfloat16);
          ShardWorld world(ranks, 1, backend);
          EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
            const Layers layers(6, 96);
            FullyShardOptions options = rank.options;
            if (bfloat16) options.compute_type = DataType::kBfloat16;
            FullyShard model(layers.groups(), options);
            RunStep(model, 6, zero3);
            // The second step knows the order.
            const TrafficStats before = model.traffic();
            RunStep(model, 6, zero3);

            const double n = ranks;
            const double all = layers.bytes();
            const double one = layers.layer_bytes();
            const double narrow = bfloat16 ? 0.5 : 1;
            const MemoryStats memory = model.memory();
            EXPECT_FORMULA(memory.shards.peak, all / n);
            EXPECT_FORMULA(memory.gradient_shards.peak, all / n);
            EXPECT_FORMULA(memory.gather_buffers.peak, narrow * one);
            EXPECT_FORMULA(memory.reduce_buffers.peak, one);
            EXPECT_FORMULA(memory.gradients.peak, narrow * one);
            EXPECT_FORMULA(memory.values.peak, narrow * (zero3 ? one : all));
            // Shards and their gradients, values, the gather buffer, the
            // gradients and the reduce buffer.
            EXPECT_FORMULA(memory.total.peak, 2 * all / n +
                                                  narrow * (zero3 ? one : all) +
                                                  2 * narrow * one + one);
            EXPECT_EQ(memory.values.current, 0);
            EXPECT_EQ(memory.gradients.current, 0);

            const double sent = all * (n - 1) / n;
            const TrafficStats traffic = model.traffic();
            EXPECT_FORMULA(traffic.all_gather - before.all_gather,
                           (zero3 ? 2 : 1) * narrow * sent);
            EXPECT_FORMULA(traffic.reduce_scatter - before.reduce_scatter,
                           sent);
            EXPECT_EQ(traffic.all_reduce, 0);
          }),
                      Each(""));
        }
      }
    }
  }
}

// Random groups on random numbers of ranks, gathered and reduced in random
// orders. The values are small integers: all sums are exact.
TEST(FullyShardTest, ValuesAndGradientsOfRandomGroupsAreExact) {
  for (int seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 shapes(seed);
    const int shards = 1 + static_cast<int>(shapes() % 4);
    ShardWorld world(shards, shards == 2 ? 2 : 1);
    const double ranks = shards * world.replicas();
    EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
      // The same on all ranks.
      std::mt19937 random(seed);
      std::list<std::vector<float>> memory;
      std::vector<ShardGroup> groups(1 + random() % 4);
      for (ShardGroup& group : groups) {
        group.name = "group" + std::to_string(memory.size());
        const size_t count = 1 + random() % 4;
        for (size_t i = 0; i < count; ++i) {
          std::vector<int64_t> shape(1 + random() % 3);
          for (int64_t& extent : shape) {
            extent = 1 + static_cast<int64_t>(random() % 6);
          }
          const std::string name = std::to_string(memory.size());
          auto& values = memory.emplace_back(6 * 6 * 6);
          for (float& value : values) value = static_cast<float>(random() % 99);
          group.parameters.push_back(
              {name, Tensor(values.data(), std::span(std::as_const(shape)))});
        }
      }
      FullyShardOptions options = rank.options;
      if (random() % 2 == 0) options.compute_type = DataType::kBfloat16;
      FullyShard model(groups, options);
      for (int call = 0; call < 30; ++call) {
        const int group = static_cast<int>(random() % groups.size());
        const auto& parameters = groups[group].parameters;
        switch (random() % 4) {
          case 0:
            model.Unshard(group);
            break;
          case 1:
            model.Reshard(group);
            break;
          case 2:
            model.WaitUnshard(group);
            for (size_t i = 0; i < parameters.size(); ++i) {
              ASSERT_EQ(ToDoubles(model.Value(group, static_cast<int>(i))),
                        ToDoubles(parameters[i].value));
            }
            break;
          default: {
            model.SetGradientSync(random() % 2 == 0);
            for (size_t i = 0; i < parameters.size(); ++i) {
              // Rank r gives r + 1 for every element.
              const double gives =
                  rank.replica * world.shards() + rank.shard + 1;
              const Tensor gradient =
                  model.Gradient(group, static_cast<int>(i));
              AddDoubles(gradient,
                         std::vector<double>(gradient.element_count(), gives));
            }
            model.GradientsReady(group);
            model.SetGradientSync(true);
            model.GradientsReady(group);
            model.FinishStep();
            double elements = 0;
            for (const FullParameter& one : parameters) {
              elements += static_cast<double>(one.value.element_count());
            }
            const double mean = (ranks + 1) / 2;
            ASSERT_DOUBLE_EQ(model.GradientNorm(1), mean * elements);
            for (const ParameterShard& shard : model.Shards()) {
              const auto found = std::find_if(
                  parameters.begin(), parameters.end(),
                  [&](const auto& one) { return one.name == shard.name; });
              ASSERT_THAT(ToDoubles(shard.gradient),
                          Each(found == parameters.end() ? 0 : mean));
            }
            model.ZeroGradients();
          }
        }
      }
    }),
                Each(""));
  }
}

TEST(FullyShardTest, HybridTrafficIsThatOfTheFormula) {
  ShardWorld world(2, 2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    const Layers layers(3, 50);
    FullyShard model(layers.groups(), rank.options);
    RunStep(model, 3, true);
    EXPECT_FORMULA(model.traffic().reduce_scatter, layers.bytes() / 2);
    // All reduced over the two replicas is a half.
    EXPECT_FORMULA(model.traffic().all_reduce, layers.bytes() / 2);
    // One buffer is reduced over the replicas while the next one is scattered.
    EXPECT_FORMULA(model.memory().reduce_buffers.peak,
                   2 * layers.layer_bytes());
  }),
              Each(""));
}

TEST(FullyShardTest, TheNextGroupIsGatheredAhead) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    const Layers layers(3, 8);
    FullyShard model(layers.groups(), rank.options);
    const auto gathers = [&] {
      return model.traffic().all_gather / (4 * 64 * 4 + 16);
    };
    RunStep(model, 3, true);
    EXPECT_EQ(gathers(), 6);
    model.WaitUnshard(0);
    EXPECT_EQ(gathers(), 8);  // 0 and, as learned, 1
    model.Reshard(0);
    model.WaitUnshard(1);
    EXPECT_EQ(gathers(), 9);  // 2
    // Another order than the learned one: 1 is not in it again before 2.
    model.Reshard(1);
    model.WaitUnshard(2);
    EXPECT_EQ(gathers(), 9);
    model.FinishStep();

    model.SetPrefetchOrder({2, 0});
    model.WaitUnshard(2);
    EXPECT_EQ(gathers(), 11);
    model.WaitUnshard(0);
    EXPECT_EQ(gathers(), 11);
    EXPECT_EQ(ToDoubles(model.Value(0, 0))[65], 65);
    model.FinishStep();
    EXPECT_EQ(model.memory().values.current, 0);
    // A group that was gathered ahead and not used is dropped.
    model.WaitUnshard(2);
    model.FinishStep();
    EXPECT_EQ(gathers(), 13);
    model.WaitUnshard(1);
    EXPECT_EQ(gathers(), 14);
  }),
              Each(""));
}

TEST(FullyShardTest, AnEvaluationTeachesNoWrongOrder) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    const Layers layers(3, 8);
    FullyShard model(layers.groups(), rank.options);
    const auto evaluate = [&] {
      for (int layer = 0; layer < 3; ++layer) {
        model.WaitUnshard(layer);
        model.Reshard(layer);
      }
      model.FinishStep();
    };
    const auto gathers = [&] {
      return model.traffic().all_gather / (4 * 64 * 4 + 16);
    };
    // How many groups a step of training gathers ahead in backward.
    const auto train = [&] {
      for (int layer = 0; layer < 3; ++layer) {
        model.WaitUnshard(layer);
        model.Reshard(layer);
      }
      int ahead = 0;
      const int64_t before = gathers();
      for (int layer = 2; layer >= 0; --layer) {
        ahead += gathers() - before > 2 - layer ? 1 : 0;
        model.WaitUnshard(layer);
        model.Gradient(layer, 0);
        model.GradientsReady(layer);
      }
      model.FinishStep();
      return ahead;
    };
    evaluate();
    train();
    EXPECT_EQ(train(), 2);
    evaluate();
    EXPECT_EQ(train(), 2);
    // Not what the program has set.
    model.SetPrefetchOrder({2});
    EXPECT_EQ(train(), 0);
    EXPECT_EQ(train(), 0);
    model.SetPrefetchOrder({});
    EXPECT_EQ(train(), 0);
    EXPECT_EQ(train(), 2);
  }),
              Each(""));
}

TEST(FullyShardTest, UnshardAndGradientsReadyDoNotWaitForOtherRanks) {
  ShardWorld world(2);
  std::latch gathers(1);
  std::latch reduces(1);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    const Layers layers(2, 5000);
    FullyShard model(layers.groups(), rank.options);
    // Rank 1 starts nothing until rank 0 has.
    if (rank.shard == 1) gathers.wait();
    model.Unshard(0);
    model.Unshard(1);
    if (rank.shard == 0) gathers.count_down();
    model.WaitUnshard(0);
    model.WaitUnshard(1);
    if (rank.shard == 1) reduces.wait();
    model.Gradient(0, 0);
    model.GradientsReady(0);
    if (rank.shard == 0) reduces.count_down();
    model.FinishStep();
  }),
              Each(""));
}

TEST(FullyShardTest, SeveralGroupsMayBeGatheredAtOnce) {
  ShardWorld world(3);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<double> small = {1, 2};
    std::vector<double> large(100);
    std::iota(large.begin(), large.end(), 0);
    FullyShard model({{"small", {{"s", Tensor(small)}}},
                      {"large", {{"l", Tensor(large.data(), {10, 10})}}}},
                     rank.options);
    model.Unshard(1);
    model.Unshard(0);
    model.Unshard(1);
    model.WaitUnshard(0);
    EXPECT_THAT(ToDoubles(model.Value(0, 0)), ElementsAre(1, 2));
    model.WaitUnshard(1);
    EXPECT_EQ(ToDoubles(model.Value(1, 0)), large);
    EXPECT_THAT(model.Value(1, 0).shape(), ElementsAre(10, 10));
    // Not waited for.
    model.FinishStep();
    model.Unshard(0);
  }),
              Each(""));
}

TEST(FullyShardTest, ShardsHaveTheirBoxes) {
  ShardWorld world(4);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    std::vector<float> one = {7};
    FullyShard model(
        {{"g",
          {{"matrix", Tensor(values.data(), {5, 2})}, {"one", Tensor(one)}}}},
        rank.options);
    const std::vector<ParameterShard> shards = model.Shards();
    ASSERT_THAT(shards, SizeIs(2));
    EXPECT_EQ(shards[0].name, "matrix");
    EXPECT_THAT(shards[0].global_shape, ElementsAre(5, 2));
    const int64_t rows[] = {2, 2, 1, 0};
    const int64_t firsts[] = {0, 2, 4, 5};
    const int64_t first = firsts[rank.shard];
    EXPECT_THAT(shards[0].offsets, ElementsAre(first, 0));
    EXPECT_THAT(shards[0].lengths, ElementsAre(rows[rank.shard], 2));
    EXPECT_THAT(shards[0].value.shape(), ElementsAre(rows[rank.shard], 2));
    std::vector<double> mine;
    for (int64_t i = 0; i < 2 * rows[rank.shard]; ++i) {
      mine.push_back(static_cast<double>(2 * first + i));
    }
    EXPECT_EQ(ToDoubles(shards[0].value), mine);
    EXPECT_EQ(shards[1].value.element_count(), rank.shard == 0 ? 1 : 0);
    // Written by the program, and found by all.
    AddDoubles(shards[1].value,
               std::vector<double>(shards[1].value.element_count(), 3));
    model.WaitUnshard(0);
    EXPECT_THAT(ToDoubles(model.Value(0, 1)), ElementsAre(10));
  }),
              Each(""));
}

TEST(FullyShardTest, ParametersWithoutValuesAreZero) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    const int64_t shape[] = {3, 2};
    FullyShard model(
        {{"g", {{"p", Tensor(nullptr, DataType::kBfloat16, shape)}}}},
        rank.options);
    model.WaitUnshard(0);
    EXPECT_THAT(ToDoubles(model.Value(0, 0)), Each(0));
  }),
              Each(""));
}

TEST(FullyShardTest, ReplicasGetTheShardsOfTheFirst) {
  ShardWorld world(2, 2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<float> values(3, static_cast<float>(rank.replica));
    FullyShard model({{"g", {{"p", Tensor(values)}}}}, rank.options);
    model.WaitUnshard(0);
    EXPECT_THAT(ToDoubles(model.Value(0, 0)), Each(0));
  }),
              Each(""));
}

TEST(FullyShardTest, GradientsThatNobodyAskedForAreZero) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<float> values = {1, 2, 3};
    FullyShard model({{"g", {{"p", Tensor(values)}}}}, rank.options);
    // Leaves something in the reduce buffer.
    AddDoubles(model.Gradient(0, 0), {8, 8, 8});
    model.GradientsReady(0);
    model.FinishStep();
    model.ZeroGradients();
    if (rank.shard == 0) AddDoubles(model.Gradient(0, 0), {2, 4, 6});
    model.GradientsReady(0);
    model.FinishStep();
    const std::vector<double> mine = ToDoubles(model.Shards()[0].gradient);
    EXPECT_EQ(mine, rank.shard == 0 ? std::vector<double>({1, 2})
                                    : std::vector<double>({3}));
    EXPECT_DOUBLE_EQ(model.GradientNorm(), std::sqrt(14));
  }),
              Each(""));
}

TEST(FullyShardTest, NormsAreOverAllGroupsAndRanks) {
  ShardWorld world(3);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<double> a(4);
    std::vector<float> b(2);
    FullyShard model({{"a", {{"a", Tensor(a)}}}, {"b", {{"b", Tensor(b)}}}},
                     rank.options);
    AddDoubles(model.Gradient(0, 0), {1, -2, 3, -4});
    AddDoubles(model.Gradient(1, 0), {-12, 0.5});
    for (const int group : {1, 0}) model.GradientsReady(group);
    model.FinishStep();
    EXPECT_DOUBLE_EQ(model.GradientNorm(), std::sqrt(30 + 144.25));
    EXPECT_DOUBLE_EQ(model.GradientNorm(1), 22.5);
    EXPECT_NEAR(model.GradientNorm(3), std::cbrt(100 + 1728.125), 1e-12);
    const double infinity = std::numeric_limits<double>::infinity();
    EXPECT_EQ(model.GradientNorm(infinity), 12);
    // Large enough already.
    EXPECT_EQ(model.ClipGradientNorm(12.5, infinity), 12);
    EXPECT_EQ(model.GradientNorm(infinity), 12);
    EXPECT_EQ(model.ClipGradientNorm(6, infinity), 12);
    EXPECT_NEAR(model.GradientNorm(1), 11.25, 1e-5);
    // NaN on one rank reaches all.
    AddDoubles(model.Shards()[0].gradient,
               std::vector<double>(model.Shards()[0].lengths[0],
                                   rank.shard == 1 ? std::nan("") : 0));
    EXPECT_TRUE(std::isnan(model.GradientNorm(infinity)));
    EXPECT_TRUE(std::isnan(model.ClipGradientNorm(1)));
    if (rank.shard == 0) {
      EXPECT_TRUE(std::isnan(ToDoubles(model.Shards()[0].gradient)[0]));
    }
  }),
              Each(""));
}

// The groups of replicas may add in other orders; here, their gradients differ.
TEST(FullyShardTest, TheNormHasTheSameBitsOnAllReplicas) {
  ShardWorld world(2, 2);
  std::vector<double> norms(4);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<double> values(4);
    FullyShard model({{"g", {{"p", Tensor(values)}}}}, rank.options);
    const double gradient = rank.replica == 0 ? 1 : std::nextafter(1, 2);
    AddDoubles(model.Shards()[0].gradient, {gradient, gradient});
    norms[2 * rank.replica + rank.shard] = model.GradientNorm(1);
  }),
              Each(""));
  EXPECT_THAT(norms, Each(4));
}

TEST(FullyShardTest, GradientsAddUpUntilZeroGradients) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<float> values = {1, 2};
    FullyShard model({{"g", {{"p", Tensor(values)}}}}, rank.options);
    for (int step = 0; step < 3; ++step) {
      AddDoubles(model.Gradient(0, 0), {1, 1});
      model.GradientsReady(0);
      model.FinishStep();
    }
    EXPECT_THAT(ToDoubles(model.Shards()[0].gradient), ElementsAre(3));
    model.ZeroGradients();
    EXPECT_THAT(ToDoubles(model.Shards()[0].gradient), ElementsAre(0));
  }),
              Each(""));
}

TEST(FullyShardTest, ShardsLieInTheMemoryOfTheProgram) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<std::shared_ptr<void>> given;
    FullyShardOptions options = rank.options;
    options.allocate_shards = [&](size_t bytes) {
      given.push_back(std::make_shared<std::vector<double>>(bytes / 8 + 1));
      return std::shared_ptr<void>(
          given.back(),
          static_cast<std::vector<double>*>(given.back().get())->data());
    };
    std::vector<double> values = {1, 2, 3};
    {
      FullyShard model({{"g", {{"p", Tensor(values)}}}}, options);
      ASSERT_THAT(given, SizeIs(2));
      const auto* const memory =
          static_cast<std::vector<double>*>(given[0].get());
      EXPECT_EQ(model.Shards()[0].value.data(), memory->data());
      EXPECT_EQ((*memory)[0], rank.shard == 0 ? 1 : 3);
    }
    EXPECT_EQ(given[0].use_count(), 1);
  }),
              Each(""));
}

TEST(FullyShardTest, ARankThatIsNotInTheGroupDoesNothing) {
  std::vector<float> values = {1, 2};
  FullyShard model({{"g", {{"p", Tensor(values)}}}},
                   {.group = LocalGroups::NonMember()});
  model.WaitUnshard(0);
  EXPECT_EQ(model.Value(0, 0).element_count(), 0);
  model.GradientsReady(0);
  model.FinishStep();
  EXPECT_EQ(model.ClipGradientNorm(1), 0);
  EXPECT_THAT(model.Shards(), IsEmpty());
  EXPECT_EQ(model.memory().total.peak, 0);
}

}  // namespace
}  // namespace muster::testing
