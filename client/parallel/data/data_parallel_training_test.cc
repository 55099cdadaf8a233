// Trains a perceptron with every hook, and compares with one process that
// computes in double.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "client/parallel/data/testing/model.h"
#include "client/testing/local_groups.h"
#include "muster/data_parallel.h"

namespace muster {
namespace {

using ::testing::Each;
using testing::LocalGroups;
using testing::Model;

constexpr int kRanks = 4;
constexpr size_t kInputs = 20;
constexpr size_t kHidden = 32;
constexpr size_t kClasses = 5;
constexpr size_t kExamples = 200;
constexpr int kSteps = 60;
constexpr double kLearningRate = 0.5;

struct Example {
  std::vector<double> inputs;
  size_t label;
};

// Points around the centres of their classes, which overlap.
std::vector<Example> MakeExamples() {
  std::mt19937 random(1);
  const auto uniform = [&] { return static_cast<double>(random()) * 0x1p-32; };
  const auto normal = [&] {
    return std::sqrt(-2 * std::log(1 - uniform())) *
           std::cos(2 * std::numbers::pi * uniform());
  };
  std::vector<double> centers(kClasses * kInputs);
  for (double& each : centers) each = 0.6 * normal();
  std::vector<Example> examples(kExamples);
  for (size_t i = 0; i < kExamples; ++i) {
    examples[i].label = i % kClasses;
    for (size_t k = 0; k < kInputs; ++k) {
      examples[i].inputs.push_back(centers[examples[i].label * kInputs + k] +
                                   normal());
    }
  }
  return examples;
}

// weights1, bias1, weights2, bias2.
using Layers = std::vector<std::vector<double>>;

const std::vector<Model::Shape>& GetShapes(DataType type) {
  static std::vector<Model::Shape> shapes;
  shapes = {{{kHidden, kInputs}, type},
            {{kHidden}, type},
            {{kClasses, kHidden}, type},
            {{kClasses}, type}};
  return shapes;
}

Layers MakeLayers() {
  std::mt19937 random(2);
  Layers layers = {
      std::vector<double>(kHidden * kInputs), std::vector<double>(kHidden),
      std::vector<double>(kClasses * kHidden), std::vector<double>(kClasses)};
  for (const size_t layer : {0, 2}) {
    for (double& each : layers[layer]) {
      each = 0.4 * (static_cast<double>(random()) * 0x1p-31 - 1);
    }
  }
  return layers;
}

struct Score {
  double loss = 0;
  double accuracy = 0;
};

// Adds the mean gradient of the examples `first`, `first` + `stride`, ... to
// `gradients`, unless null. Returns their mean loss and accuracy.
Score Compute(const Layers& layers, const std::vector<Example>& examples,
              size_t first, size_t stride, Layers* gradients) {
  Score score;
  const double weight = static_cast<double>(stride) / kExamples;
  std::vector<double> hidden(kHidden);
  std::vector<double> scores(kClasses);
  for (size_t at = first; at < examples.size(); at += stride) {
    const Example& example = examples[at];
    for (size_t h = 0; h < kHidden; ++h) {
      double sum = layers[1][h];
      for (size_t k = 0; k < kInputs; ++k) {
        sum += layers[0][h * kInputs + k] * example.inputs[k];
      }
      hidden[h] = std::tanh(sum);
    }
    double total = 0;
    for (size_t c = 0; c < kClasses; ++c) {
      double sum = layers[3][c];
      for (size_t h = 0; h < kHidden; ++h) {
        sum += layers[2][c * kHidden + h] * hidden[h];
      }
      scores[c] = std::exp(sum);
      total += scores[c];
    }
    const auto best = std::max_element(scores.begin(), scores.end());
    if (static_cast<size_t>(best - scores.begin()) == example.label) {
      score.accuracy += weight;
    }
    score.loss -= weight * std::log(scores[example.label] / total);
    if (gradients == nullptr) continue;
    Layers& out = *gradients;
    std::vector<double> of_hidden(kHidden, 0);
    for (size_t c = 0; c < kClasses; ++c) {
      const double error =
          weight * (scores[c] / total - (c == example.label ? 1 : 0));
      out[3][c] += error;
      for (size_t h = 0; h < kHidden; ++h) {
        out[2][c * kHidden + h] += error * hidden[h];
        of_hidden[h] += error * layers[2][c * kHidden + h];
      }
    }
    for (size_t h = 0; h < kHidden; ++h) {
      const double error = of_hidden[h] * (1 - hidden[h] * hidden[h]);
      out[1][h] += error;
      for (size_t k = 0; k < kInputs; ++k) {
        out[0][h * kInputs + k] += error * example.inputs[k];
      }
    }
  }
  return score;
}

void Update(Layers& layers, const Layers& gradients) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (size_t i = 0; i < layers[layer].size(); ++i) {
      layers[layer][i] -= kLearningRate * gradients[layer][i];
    }
  }
}

Layers MakeZeros() {
  Layers zeros = MakeLayers();
  for (auto& layer : zeros) std::fill(layer.begin(), layer.end(), 0);
  return zeros;
}

Score TrainInOneProcess(const std::vector<Example>& examples) {
  Layers layers = MakeLayers();
  for (int step = 0; step < kSteps; ++step) {
    Layers gradients = MakeZeros();
    Compute(layers, examples, 0, 1, &gradients);
    Update(layers, gradients);
  }
  return Compute(layers, examples, 0, 1, nullptr);
}

struct Case {
  std::string name;
  std::function<std::shared_ptr<CommunicationHook>()> make;
  double loss_tolerance;
  double accuracy_tolerance;
  DataType type = DataType::kFloat32;
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

class TrainingTest : public ::testing::TestWithParam<Case> {};

TEST_P(TrainingTest, ReachesTheLossOfOneProcess) {
  const std::vector<Example> examples = MakeExamples();
  const Score start = Compute(MakeLayers(), examples, 0, 1, nullptr);
  static const Score exact = TrainInOneProcess(examples);
  ASSERT_GT(start.loss, 2 * exact.loss);
  ASSERT_GT(exact.accuracy, 0.8);
  LocalGroups groups(kRanks);
  std::vector<Layers> trained(kRanks);
  EXPECT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
    Model memory(GetShapes(GetParam().type), /*in_buckets=*/true);
    // Several buckets.
    DataParallel model(memory.parameters(), {.group = group,
                                             .bucket_bytes = 1000,
                                             .first_bucket_bytes = 1,
                                             .hook = GetParam().make()});
    // The weights stay in double, as master weights do.
    Layers layers = MakeLayers();
    for (int step = 0; step < kSteps; ++step) {
      Layers gradients = MakeZeros();
      Compute(layers, examples, static_cast<size_t>(rank), kRanks, &gradients);
      for (size_t i = layers.size(); i-- > 0;) {
        testing::SetNumbers(model.Gradient(i), gradients[i]);
        model.Ready(i);
      }
      model.FinishStep();
      for (size_t i = 0; i < layers.size(); ++i) {
        gradients[i] = testing::GetNumbers(model.Gradient(i));
      }
      Update(layers, gradients);
    }
    trained[static_cast<size_t>(rank)] = layers;
  }),
              Each(""));
  EXPECT_THAT(trained, Each(trained[0]));
  const Score score = Compute(trained[0], examples, 0, 1, nullptr);
  std::cout << "loss " << score.loss << ", of one process " << exact.loss
            << "; accuracy " << score.accuracy << "\n";
  EXPECT_NEAR(score.loss, exact.loss, GetParam().loss_tolerance);
  EXPECT_NEAR(score.accuracy, exact.accuracy, GetParam().accuracy_tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, TrainingTest,
    ::testing::Values(
        Case{"all_reduce", MakeAllReduceHook, 1e-5, 0},
        Case{"all_reduce_of_bfloat16", MakeAllReduceHook, 1e-4, 0.005,
             DataType::kBfloat16},
        Case{"fp16", MakeFp16CompressHook, 1e-4, 0.005},
        Case{"bf16", MakeBf16CompressHook, 1e-4, 0.005},
        Case{"int8", MakeInt8CompressHook, 1e-4, 0.005},
        Case{"fp8", MakeFp8CompressHook, 2e-4, 0.005},
        Case{"power_sgd",
             [] { return MakePowerSgdHook({.rank = 2, .start_step = 10}); },
             0.01, 0.005}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster
