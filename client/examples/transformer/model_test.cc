#include "client/examples/transformer/model.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::examples {
namespace {

using muster::testing::LocalGroups;
using ::testing::Each;

constexpr int64_t kSequences = 2;

// The second rank of two has fewer characters.
const ModelSettings kSettings = {.data_type = DataType::kFloat64,
                                 .vocabulary = 7,
                                 .context = 5,
                                 .width = 8,
                                 .heads = 2,
                                 .blocks = 2};

// A rank's part of the model. Element i of a whole parameter is a function of i
// and the parameter's name.
class Model {
 public:
  explicit Model(const std::shared_ptr<ProcessGroup>& group)
      : layers_(MakeLayers(kSettings, {.group = group}, 0, 1)) {
    for (const auto& layer : layers_) {
      for (const ParameterSpec& spec : layer->parameters()) {
        const ShardBox box = ComputeShardBox(spec.shape, {spec.placement},
                                             {group->size()}, {group->rank()});
        Parameter& parameter = parameters_[spec.name];
        parameter = {
            spec.shape, box, Cut(MakeWhole(spec), spec.shape, box),
            std::vector<double>(static_cast<size_t>(box.element_count()))};
      }
    }
    for (int64_t i = 0; i < kSequences * kSettings.context; ++i) {
      ids_.push_back(i * i % kSettings.vocabulary);
      targets_.push_back((i * i + 2 * i + 1) % kSettings.vocabulary);
    }
  }

  // The gradients are those of twice the loss.
  double ComputeGradients() {
    std::vector<double> activations(CountActivations());
    Forward(layers_.size(), activations);
    auto& head = static_cast<LossLayer&>(*layers_.back());
    head.set_loss_weight(2);
    for (size_t i = layers_.size(); i-- > 0;) {
      layers_[i]->Backward(GetMicrobatch(), GetWeights(i), GetGradients(i),
                           ToTensor(activations));
    }
    return head.loss();
  }

  double ComputeLoss() {
    std::vector<double> activations(CountActivations());
    Forward(layers_.size(), activations);
    return static_cast<LossLayer&>(*layers_.back()).loss();
  }

  // The head's input.
  std::vector<double> ComputeActivations() {
    std::vector<double> activations(CountActivations());
    Forward(layers_.size() - 1, activations);
    return activations;
  }

  struct Parameter {
    std::vector<int64_t> shape;
    ShardBox box;
    std::vector<double> value;
    std::vector<double> gradient;
  };
  std::map<std::string, Parameter>& parameters() { return parameters_; }
  std::vector<int64_t>& ids() { return ids_; }

  // A matrix's or a vector's elements in a box.
  static std::vector<double> Cut(const std::vector<double>& whole,
                                 const std::vector<int64_t>& shape,
                                 const ShardBox& box) {
    std::vector<double> part;
    const bool flat = shape.size() == 1;
    const int64_t columns = flat ? 1 : shape[1];
    for (int64_t i = 0; i < box.lengths[0]; ++i) {
      for (int64_t k = 0; k < (flat ? 1 : box.lengths[1]); ++k) {
        part.push_back(whole[static_cast<size_t>(
            (box.offsets[0] + i) * columns + (flat ? 0 : box.offsets[1]) + k)]);
      }
    }
    return part;
  }

 private:
  static std::vector<double> MakeWhole(const ParameterSpec& spec) {
    const int64_t count =
        spec.shape.size() == 1 ? spec.shape[0] : spec.shape[0] * spec.shape[1];
    std::vector<double> whole;
    for (int64_t i = 0; i < count; ++i) {
      whole.push_back(spec.mean +
                      0.4 * std::sin(1.3 * static_cast<double>(i) +
                                     static_cast<double>(spec.name.size())));
    }
    return whole;
  }

  static size_t CountActivations() {
    return static_cast<size_t>(kSequences * kSettings.context *
                               kSettings.width);
  }
  static Tensor ToTensor(std::vector<double>& activations) {
    return {activations.data(),
            {kSequences * kSettings.context, kSettings.width}};
  }

  void Forward(size_t layers, std::vector<double>& activations) {
    for (size_t i = 0; i < layers; ++i) {
      layers_[i]->Forward(GetMicrobatch(), GetWeights(i),
                          ToTensor(activations));
    }
  }

  Microbatch GetMicrobatch() {
    return {0,
            {ids_.data(), {kSequences, kSettings.context}},
            {targets_.data(), {kSequences, kSettings.context}}};
  }

  std::vector<Tensor> GetWeights(size_t layer) {
    return Collect(layer, &Parameter::value);
  }
  std::vector<Tensor> GetGradients(size_t layer) {
    return Collect(layer, &Parameter::gradient);
  }
  std::vector<Tensor> Collect(size_t layer,
                              std::vector<double> Parameter::*member) {
    std::vector<Tensor> tensors;
    for (const ParameterSpec& spec : layers_[layer]->parameters()) {
      Parameter& parameter = parameters_[spec.name];
      tensors.push_back(
          Tensor((parameter.*member).data(),
                 std::span<const int64_t>(parameter.box.lengths)));
    }
    return tensors;
  }

  const std::vector<std::unique_ptr<Layer>> layers_;
  std::map<std::string, Parameter> parameters_;
  std::vector<int64_t> ids_;
  std::vector<int64_t> targets_;
};

TEST(TransformerModelTest, GradientIsTheSlopeOfTheLoss) {
  LocalGroups groups(1);
  Model model(groups.at(0));
  model.ComputeGradients();
  constexpr double kStep = 1e-6;
  for (auto& [name, parameter] : model.parameters()) {
    for (size_t i = 0; i < parameter.value.size(); ++i) {
      const double value = parameter.value[i];
      parameter.value[i] = value + kStep;
      const double above = model.ComputeLoss();
      parameter.value[i] = value - kStep;
      const double below = model.ComputeLoss();
      parameter.value[i] = value;
      ASSERT_NEAR(parameter.gradient[i], 2 * (above - below) / (2 * kStep),
                  1e-7)
          << name << " " << i;
    }
  }
}

TEST(TransformerModelTest, GradientsAddUp) {
  LocalGroups groups(1);
  Model once(groups.at(0));
  once.ComputeGradients();
  Model twice(groups.at(0));
  twice.ComputeGradients();
  twice.ComputeGradients();
  for (const auto& [name, parameter] : once.parameters()) {
    for (size_t i = 0; i < parameter.value.size(); ++i) {
      ASSERT_NEAR(twice.parameters()[name].gradient[i],
                  2 * parameter.gradient[i], 1e-12)
          << name << " " << i;
    }
  }
}

TEST(TransformerModelTest, TensorParallelRanksHavePartsOfTheWhole) {
  LocalGroups one(1);
  Model whole(one.at(0));
  const double loss = whole.ComputeGradients();
  LocalGroups groups(2);
  EXPECT_THAT(groups.OnEachRank([&](const std::shared_ptr<ProcessGroup>& group,
                                    int) {
    Model part(group);
    EXPECT_NEAR(part.ComputeGradients(), loss, 1e-13);
    for (const auto& [name, parameter] : part.parameters()) {
      const std::vector<double> want = Model::Cut(
          whole.parameters().at(name).gradient, parameter.shape, parameter.box);
      ASSERT_EQ(parameter.gradient.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(parameter.gradient[i], want[i], 1e-13) << name << " " << i;
      }
    }
  }),
              Each(""));
}

TEST(TransformerModelTest, ACharacterSeesNoLaterOne) {
  LocalGroups groups(1);
  Model model(groups.at(0));
  const std::vector<double> before = model.ComputeActivations();
  // In the first sequence.
  constexpr int64_t kPosition = 3;
  model.ids()[kPosition] = (model.ids()[kPosition] + 1) % kSettings.vocabulary;
  const std::vector<double> after = model.ComputeActivations();
  for (int64_t i = 0; i < kSequences * kSettings.context; ++i) {
    const auto row = [&](const std::vector<double>& all) {
      const auto begin = all.begin() + i * kSettings.width;
      return std::vector<double>(begin, begin + kSettings.width);
    };
    const bool sees = i >= kPosition && i < kSettings.context;
    EXPECT_EQ(row(before) != row(after), sees) << i;
  }
}

TEST(TransformerModelTest, StagesShareTheBlocks) {
  LocalGroups groups(1);
  ModelSettings settings = kSettings;
  settings.blocks = 5;
  std::vector<size_t> layers;
  std::vector<std::string> names;
  for (int stage = 0; stage < 3; ++stage) {
    const auto some = MakeLayers(settings, {.group = groups.at(0)}, stage, 3);
    layers.push_back(some.size());
    names.push_back(some.front()->parameters().front().name);
  }
  EXPECT_THAT(layers, ::testing::ElementsAre(1 + 2, 4, 4 + 1));
  EXPECT_THAT(names, ::testing::ElementsAre("embedding.characters",
                                            "blocks.1.attention.gain",
                                            "blocks.3.attention.gain"));
}

}  // namespace
}  // namespace muster::examples
