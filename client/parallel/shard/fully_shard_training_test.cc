// Training equals one process.

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/parallel/shard/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/fully_shard.h"

namespace muster::testing {
namespace {

using ::testing::Each;
using ::testing::TestWithParam;
using ::testing::Values;

constexpr int kSamples = 24;
constexpr int kSteps = 20;

struct Case {
  std::string name;
  int shards = 1;
  int replicas = 1;
  TestRule rule = TestRule::kAdamW;
  DataType type = DataType::kFloat64;
  std::optional<DataType> compute_type = std::nullopt;
  std::optional<DataType> reduce_type = std::nullopt;
  double tolerance = 1e-13;
  bool reshard_after_forward = true;
  // How many parts a step's samples are computed in; with `sync` every part's
  // gradients are reduced.
  int microbatches = 1;
  bool sync = false;
  double max_norm = 0;
  std::string backend = "gloo";
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

Perceptron::Layer GetLayer(const FullyShard& model, int layer) {
  return {ToDoubles(model.Value(layer, 0)), ToDoubles(model.Value(layer, 1))};
}

// Forward and backward of some samples, which count `weight`.
void Compute(FullyShard& model, const Case& test, int first, int count,
             double weight) {
  Perceptron net(first, count);
  for (int layer = 0; layer < Perceptron::kLayers; ++layer) {
    model.WaitUnshard(layer);
    net.Forward(layer, GetLayer(model, layer));
    if (test.reshard_after_forward) model.Reshard(layer);
  }
  for (int layer = Perceptron::kLayers - 1; layer >= 0; --layer) {
    model.WaitUnshard(layer);
    auto gradients = net.Backward(layer, GetLayer(model, layer));
    for (double& one : gradients.weight) one *= weight;
    for (double& one : gradients.bias) one *= weight;
    AddDoubles(model.Gradient(layer, 0), gradients.weight);
    AddDoubles(model.Gradient(layer, 1), gradients.bias);
    model.GradientsReady(layer);
  }
}

// Trains on this rank's part of the samples.
void Train(FullyShard& model, const Case& test, const ShardRank& rank) {
  Optimizer optimizer(ToRule(test.rule), model.Tensors());
  const int ranks = test.shards * test.replicas;
  const int each = kSamples / ranks;
  const int first = (rank.replica * test.shards + rank.shard) * each;
  for (int step = 0; step < kSteps; ++step) {
    const int part = each / test.microbatches;
    for (int i = 0; i < test.microbatches; ++i) {
      model.SetGradientSync(test.sync || i + 1 == test.microbatches);
      Compute(model, test, first + i * part, part, 1.0 / test.microbatches);
    }
    model.FinishStep();
    if (test.max_norm != 0) model.ClipGradientNorm(test.max_norm);
    optimizer.Step(kLearningRate);
    model.ZeroGradients();
  }
}

using State = std::map<std::string, std::vector<double>>;

class FullyShardTrainingTest : public TestWithParam<Case> {
 protected:
  // Returns the parameters after training.
  static State Run(const Case& test) {
    ShardWorld world(test.shards, test.replicas, test.backend);
    State state;
    std::vector<State> shards(test.replicas * test.shards);
    EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
      FullyShardOptions options = rank.options;
      options.compute_type = test.compute_type;
      options.reduce_type = test.reduce_type;
      const PerceptronTensors tensors(test.type);
      FullyShard model(tensors.Groups(), options);
      Train(model, test, rank);
      State& mine = shards[rank.replica * test.shards + rank.shard];
      for (const ParameterShard& shard : model.Shards()) {
        mine[shard.name] = ToDoubles(shard.value);
      }
      const bool first = rank.replica == 0 && rank.shard == 0;
      model.GatherFullState([&](const std::string& name, const Tensor& value) {
        ASSERT_TRUE(first);
        state[name] = ToDoubles(value);
      });
    }),
                Each(""));
    // Replicas are bitwise equal.
    for (int i = test.shards; i < test.shards * test.replicas; ++i) {
      EXPECT_EQ(shards[i], shards[i % test.shards]);
    }
    return state;
  }
};

TEST_P(FullyShardTrainingTest, EqualsOneProcess) {
  const Case& test = GetParam();
  const auto reference =
      TrainReference(test.rule, kSamples, kSteps, test.max_norm);
  State state = Run(test);
  ASSERT_EQ(state.size(), 2U * Perceptron::kLayers);
  const auto initial = Perceptron::InitialLayers();
  for (int layer = 0; layer < Perceptron::kLayers; ++layer) {
    for (const bool bias : {false, true}) {
      auto& values = state[(bias ? "bias" : "weight") + std::to_string(layer)];
      const Tensor tensor(values);
      const double difference = Difference(reference, layer, bias, tensor);
      EXPECT_LE(difference, test.tolerance)
          << "layer " << layer << (bias ? " bias" : " weight");
      // It has learned something at all.
      EXPECT_GE(Difference(initial, layer, bias, tensor), 0.03);
    }
  }
}

constexpr auto kBfloat16 = DataType::kBfloat16;
constexpr auto kFloat16 = DataType::kFloat16;
constexpr auto kFloat32 = DataType::kFloat32;

INSTANTIATE_TEST_SUITE_P(
    All, FullyShardTrainingTest,
    Values(Case{.name = "Zero3On1", .shards = 1},
           Case{.name = "Zero3On2", .shards = 2},
           Case{.name = "Zero3On3", .shards = 3, .rule = TestRule::kSgd},
           Case{.name = "Zero3On4", .shards = 4},
           Case{
               .name = "Zero2On2", .shards = 2, .reshard_after_forward = false},
           Case{.name = "Zero2On4",
                .shards = 4,
                .rule = TestRule::kSgd,
                .reshard_after_forward = false},
           Case{.name = "Hybrid2x2", .shards = 2, .replicas = 2},
           Case{.name = "Hybrid1x3", .shards = 1, .replicas = 3},
           Case{.name = "Hybrid2x2Zero2",
                .shards = 2,
                .replicas = 2,
                .rule = TestRule::kSgd,
                .reshard_after_forward = false,
                .microbatches = 2},
           Case{.name = "Float32On3",
                .shards = 3,
                .type = kFloat32,
                .tolerance = 2e-6},
           Case{.name = "ComputedInBfloat16",
                .shards = 3,
                .rule = TestRule::kSgd,
                .type = kFloat32,
                .compute_type = kBfloat16,
                .tolerance = 2e-3},
           Case{.name = "ComputedAndReducedInBfloat16",
                .shards = 4,
                .rule = TestRule::kSgd,
                .type = kFloat32,
                .compute_type = kBfloat16,
                .reduce_type = kBfloat16,
                .tolerance = 2e-3},
           Case{.name = "ComputedInFloat16AddedUp",
                .shards = 2,
                .rule = TestRule::kSgd,
                .type = kFloat32,
                .compute_type = kFloat16,
                .tolerance = 3e-4,
                .microbatches = 3},
           Case{.name = "AllInFloat16",
                .shards = 2,
                .rule = TestRule::kSgd,
                .type = kFloat16,
                .tolerance = 3e-3},
           Case{.name = "NoSync", .shards = 3, .microbatches = 4},
           Case{.name = "SyncOfEachMicrobatch",
                .shards = 3,
                .microbatches = 4,
                .sync = true},
           Case{.name = "Clipped",
                .shards = 4,
                .rule = TestRule::kSgd,
                .max_norm = 0.3},
           Case{.name = "ClippedHybrid",
                .shards = 2,
                .replicas = 2,
                .rule = TestRule::kSgd,
                .max_norm = 0.3},
           Case{.name = "SymmetricMemory", .shards = 4, .backend = "shm"},
           Case{.name = "SymmetricMemoryHybrid",
                .shards = 2,
                .replicas = 2,
                .backend = "shm"}),
    [](const auto& info) { return info.param.name; });

TEST_F(FullyShardTrainingTest, Zero2And3AreBitwiseEqual) {
  const Case zero3 = {.name = "", .shards = 4, .type = kFloat32};
  Case zero2 = zero3;
  zero2.reshard_after_forward = false;
  EXPECT_EQ(Run(zero2), Run(zero3));
}

}  // namespace
}  // namespace muster::testing
