#include "muster/sharded_optimizer.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/parallel/shard/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kSamples = 24;
constexpr int kSteps = 6;

// Trains a perceptron with whole parameters: ZeRO 1.
void Train(const std::shared_ptr<ProcessGroup>& group, TestRule rule,
           DataType type, double tolerance) {
  const PerceptronTensors values(type);
  const PerceptronTensors gradients(type);
  std::vector<OptimizedTensor> tensors;
  for (int layer = 0; layer < Perceptron::kLayers; ++layer) {
    const std::string number = std::to_string(layer);
    tensors.push_back(
        {"weight" + number, values.weight(layer), gradients.weight(layer)});
    tensors.push_back(
        {"bias" + number, values.bias(layer), gradients.bias(layer)});
  }
  ShardedOptimizer optimizer(ToRule(rule), tensors, {.group = group});
  const int each = kSamples / group->size();
  for (int step = 0; step < kSteps; ++step) {
    Perceptron net(group->rank() * each, each);
    const auto layer_at = [&](int layer) {
      return Perceptron::Layer{ToDoubles(values.weight(layer)),
                               ToDoubles(values.bias(layer))};
    };
    for (int layer = 0; layer < 3; ++layer) {
      net.Forward(layer, layer_at(layer));
    }
    for (int layer = 2; layer >= 0; --layer) {
      const auto mine = net.Backward(layer, layer_at(layer));
      const auto set = [](const Tensor& tensor, std::vector<double> wanted) {
        const std::vector<double> old = ToDoubles(tensor);
        for (size_t i = 0; i < old.size(); ++i) wanted[i] -= old[i];
        AddDoubles(tensor, wanted);
      };
      set(gradients.weight(layer), mine.weight);
      set(gradients.bias(layer), mine.bias);
    }
    for (const OptimizedTensor& tensor : tensors) {
      group->AllReduce(tensor.gradient, {.op = ReduceOp::kAvg});
    }
    optimizer.Step(kLearningRate);
  }
  EXPECT_EQ(optimizer.steps(), kSteps);
  const auto reference = TrainReference(rule, kSamples, kSteps);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_LE(Difference(reference, layer, false, values.weight(layer)),
              tolerance);
    EXPECT_LE(Difference(reference, layer, true, values.bias(layer)),
              tolerance);
  }
  // Each parameter has its state once.
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto slots = rule == TestRule::kAdamW ? 2U : 1U;
    EXPECT_THAT(optimizer.state(i),
                SizeIs(optimizer.owner(i) == group->rank() ? slots : 0U));
  }
}

TEST(ShardedOptimizerTest, TrainingEqualsOneProcess) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const TestRule rule : {TestRule::kSgd, TestRule::kAdamW}) {
      ShardWorld world(ranks);
      EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
        Train(rank.options.group, rule, DataType::kFloat64, 1e-12);
        Train(rank.options.group, rule, DataType::kFloat32, 1e-5);
      }),
                  Each(""));
    }
  }
}

TEST(ShardedOptimizerTest, TypesOf16BitsTrain) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    Train(rank.options.group, TestRule::kSgd, DataType::kFloat16, 1e-2);
    Train(rank.options.group, TestRule::kSgd, DataType::kBfloat16, 5e-2);
  }),
              Each(""));
}

TEST(ShardedOptimizerTest, TheLargestGoToTheRankWithTheFewestElements) {
  ShardWorld world(3);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<float> memory(100);
    std::vector<OptimizedTensor> tensors;
    for (const int64_t count : {10, 50, 20, 20, 30, 0, 20}) {
      const Tensor tensor(memory.data(), {count});
      tensors.push_back({std::to_string(tensors.size()), tensor, tensor});
    }
    ShardedOptimizer optimizer(AdamW(), tensors, {.group = rank.options.group});
    // In order of size: 50 to 0, 30 to 1, 20 to 2, 20 to 2, 20 to 1, 10 to 2,
    // and the empty one to the first of the ranks with 50.
    std::vector<int> owners;
    for (size_t i = 0; i < tensors.size(); ++i) {
      owners.push_back(optimizer.owner(i));
    }
    EXPECT_THAT(owners, ElementsAre(2, 0, 2, 2, 1, 0, 1));
    EXPECT_NEAR(static_cast<double>(optimizer.state_bytes()), 2 * 50 * 4, 256);
    optimizer.Step(0);
  }),
              Each(""));
}

TEST(ShardedOptimizerTest, EveryRankLearnsWhatDiffers) {
  ShardWorld world(3);
  EXPECT_THAT(
      world.OnEachRank([&](const ShardRank& rank) {
        std::vector<float> memory(rank.shard == 2 ? 5 : 4);
        ShardedOptimizer optimizer(Sgd(), {{"p", memory, memory}},
                                   {.group = rank.options.group});
      }),
      Each("ShardedOptimizer: tensor \"p\": rank 20 has float32[5], rank 0 has "
           "float32[4]"));
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<float> memory(4);
    std::vector<double> other(4);
    const Tensor gradient = rank.shard == 1 ? Tensor(other) : memory;
    ShardedOptimizer optimizer(Sgd(), {{"p", memory, gradient}},
                               {.group = rank.options.group});
  }),
              Each(HasSubstr("rank 10: tensor \"p\": float32[4]: the gradient "
                             "is float64[4]")));
}

TEST(ShardedOptimizerTest, ARankWithoutMemoryFailsOnAll) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<float> memory(4);
    ShardedOptimizerOptions options = {.group = rank.options.group};
    // Rank 0 owns it.
    options.allocate_state = [](size_t) { return nullptr; };
    ShardedOptimizer optimizer(AdamW(), {{"p", memory, memory}}, options);
  }),
              Each(HasSubstr("ShardedOptimizer: rank 0: no memory: the "
                             "function that allocates returned null for 128 "
                             "bytes")));
}

TEST(ShardedOptimizerTest, ARankThatLeavesFailsTheOthers) {
  ShardWorld world(3);
  const auto errors = world.OnEachRank([&](const ShardRank& rank) {
    std::vector<float> memory(4);
    ShardedOptimizer optimizer(Sgd(), {{"p", memory, memory}},
                               {.group = rank.options.group});
    optimizer.Step(0);
    if (rank.shard == 1) return world.Leave(rank);
    for (;;) optimizer.Step(0);
  });
  EXPECT_THAT(errors[0], Not(IsEmpty()));
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[2], Not(IsEmpty()));
}

TEST(ShardedOptimizerTest, AnExceptionOfTheRuleEndsTheStepOfAllRanks) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    std::vector<float> memory(4);
    const OptimizerRule rule = {.update = [](const OptimizerUpdate&) {
      throw std::runtime_error("the gradient is NaN");
    }};
    // Rank 0 owns it.
    ShardedOptimizer optimizer(rule, {{"p", memory, memory}},
                               {.group = rank.options.group});
    try {
      optimizer.Step(0);
    } catch (const DistError&) {
      throw;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(rank.shard, 0);
    }
  }),
              ElementsAre("", HasSubstr("the gradient is NaN")));
}

TEST(ShardedOptimizerTest, ARankThatIsNotInTheGroupDoesNothing) {
  std::vector<float> memory = {1};
  ShardedOptimizer optimizer(Sgd(), {{"p", memory, memory}},
                             {.group = LocalGroups::NonMember()});
  optimizer.Step(1);
  EXPECT_THAT(memory, ElementsAre(1));
  EXPECT_THAT(optimizer.state(0), IsEmpty());
  EXPECT_EQ(optimizer.owner(0), -1);
}

TEST(OptimizerTest, TheProgramsRuleGetsEverything) {
  std::vector<double> value = {1, 2};
  std::vector<double> gradient = {10, 20};
  std::vector<float> empty;
  std::vector<int64_t> steps;
  const OptimizerRule rule = {
      .state_slots = 1, .update = [&](const OptimizerUpdate& update) {
        EXPECT_EQ(update.value.data(), value.data());
        EXPECT_EQ(update.gradient.data(), gradient.data());
        EXPECT_EQ(update.learning_rate, 0.5);
        steps.push_back(update.step);
        AddDoubles(update.state[0], {1, 1});
      }};
  Optimizer optimizer(rule, {{"e", empty, empty}, {"p", value, gradient}});
  optimizer.Step(0.5);
  optimizer.set_steps(7);
  optimizer.Step(0.5);
  EXPECT_THAT(steps, ElementsAre(1, 8));
  EXPECT_THAT(ToDoubles(optimizer.state(1)[0]), ElementsAre(2, 2));
}

TEST(OptimizerTest, RefusesWhatItCannotUpdate) {
  std::vector<float> value = {1};
  std::vector<float> two = {1, 2};
  const auto refusal = [](OptimizerRule rule, const Tensor& value,
                          const Tensor& gradient) -> std::string {
    try {
      Optimizer optimizer(std::move(rule), {{"p", value, gradient}});
      return "";
    } catch (const DistError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(refusal({}, value, value), HasSubstr("has no function update"));
  EXPECT_THAT(
      refusal({.state_slots = -1, .update = [](const auto&) {}}, value, value),
      HasSubstr("state_slots is -1"));
  EXPECT_THAT(
      refusal(Sgd(), value, two),
      HasSubstr("tensor \"p\": float32[1]: the gradient is float32[2]"));
  const int64_t shape[] = {1};
  const Tensor device(value.data(), DataType::kFloat32, shape,
                      {DeviceType::kCuda, 0});
  EXPECT_THAT(refusal(Sgd(), device, device), HasSubstr("not on the CPU"));
  const Tensor null(nullptr, DataType::kFloat32, shape);
  EXPECT_THAT(refusal(Sgd(), value, null),
              HasSubstr("gradient: null data pointer"));
}

TEST(OptimizerTest, NoMemoryIsAnError) {
  std::vector<float> value(3);
  try {
    Optimizer optimizer(AdamW(), {{"p", value, value}},
                        [](size_t) { return nullptr; });
    ADD_FAILURE() << "no error";
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kResourceExhausted);
  }
}

TEST(OptimizerTest, StateLiesInTheMemoryOfTheProgram) {
  std::vector<float> value(3);
  std::shared_ptr<void> given;
  Optimizer optimizer(AdamW(), {{"p", value, value}}, [&](size_t bytes) {
    EXPECT_GE(bytes, 2 * 3 * sizeof(float));
    given = std::make_shared<std::vector<double>>(bytes / 8);
    return std::shared_ptr<void>(
        given, static_cast<std::vector<double>*>(given.get())->data());
  });
  EXPECT_EQ(optimizer.state(0)[0].data(),
            static_cast<std::vector<double>*>(given.get())->data());
}

}  // namespace
}  // namespace muster::testing
