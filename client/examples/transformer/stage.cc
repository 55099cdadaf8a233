#include "client/examples/transformer/stage.h"

#include <cstddef>
#include <cstring>

namespace muster::examples {

Stage::Stage(const ModelSettings& settings,
             const std::vector<std::unique_ptr<Layer>>& layers,
             Weights& weights, int stage, int stages, int microbatches)
    : settings_(settings),
      layers_(layers),
      weights_(weights),
      stage_(stage),
      stages_(stages),
      microbatches_(microbatches) {}

PipelineStage Stage::Describe(int64_t sequences) {
  const PipelineShape shape = {
      settings_.data_type,
      {sequences / microbatches_ * settings_.context, settings_.width}};
  PipelineStage stage;
  stage.stage = stage_;
  if (!is_first()) stage.input = shape;
  stage.output = shape;
  stage.forward = [this](int number, const Tensor& input,
                         const Tensor& output) {
    Forward(number, input, output);
  };
  if (is_last()) {
    stage.loss = [this](int number, const Tensor& output,
                        const Tensor& output_gradient) {
      return ComputeLoss(number, output, output_gradient);
    };
  }
  stage.backward = [this](int number, const Tensor& /*input*/,
                          const Tensor& output_gradient,
                          const Tensor& input_gradient) {
    Backward(number, output_gradient, input_gradient);
  };
  return stage;
}

void Stage::Forward(int number, const Tensor& input, const Tensor& output) {
  if (!is_first()) std::memcpy(output.data(), input.data(), output.bytes());
  for (int i = 0; i < CountBodyLayers(); ++i) ForwardLayer(i, number, output);
}

double Stage::ComputeLoss(int number, const Tensor& output,
                          const Tensor& output_gradient) {
  const int head = CountBodyLayers();
  auto& layer = static_cast<LossLayer&>(*layers_.back());
  layer.set_loss_weight(1.0 / microbatches_);
  ForwardLayer(head, number, output);
  BackwardLayer(head, number, output_gradient);
  return layer.loss();
}

void Stage::Backward(int number, const Tensor& output_gradient,
                     const Tensor& input_gradient) {
  Tensor gradient = input_gradient;
  if (is_first()) {
    gradient_.resize(output_gradient.bytes());
    gradient = Tensor(gradient_.data(), output_gradient.data_type(),
                      output_gradient.shape());
  }
  std::memcpy(gradient.data(), output_gradient.data(), gradient.bytes());
  for (int i = CountBodyLayers(); i-- > 0;) BackwardLayer(i, number, gradient);
}

Microbatch Stage::GetMicrobatch(int number) {
  const int64_t sequences = static_cast<int64_t>(batch_.ids.size()) /
                            settings_.context / microbatches_;
  const auto part = [&](std::vector<int64_t>& all) {
    return Tensor(all.data() + number * sequences * settings_.context,
                  {sequences, settings_.context});
  };
  return {number, part(batch_.ids), part(batch_.targets)};
}

void Stage::ForwardLayer(int layer, int number, const Tensor& activations) {
  layers_[static_cast<size_t>(layer)]->Forward(
      GetMicrobatch(number), weights_.Values(layer), activations);
  weights_.Release(layer);
}

void Stage::BackwardLayer(int layer, int number, const Tensor& gradient) {
  layers_[static_cast<size_t>(layer)]->Backward(
      GetMicrobatch(number), weights_.Values(layer), weights_.Gradients(layer),
      gradient);
  if (number + 1 == microbatches_) {
    weights_.GradientsReady(layer);
  } else {
    weights_.Release(layer);
  }
}

}  // namespace muster::examples
