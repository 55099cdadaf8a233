#include "client/examples/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "muster/muster.hpp"

namespace muster::examples {
namespace {

// Mean and deviation of the training images' pixels, from 0 to 1.
constexpr float kPixelMean = 0.2860f;
constexpr float kPixelDeviation = 0.3530f;
constexpr size_t kTestBatch = 500;

}  // namespace

Trainer::Trainer(const TrainingSettings& settings, const LabelledImages& train,
                 const LabelledImages& test, TrainingState state)
    : settings_(settings),
      train_(train),
      test_(test),
      rank_(GetRank()),
      world_size_(GetWorldSize()),
      sampler_(train.size(), static_cast<size_t>(settings.global_batch),
               settings.seed, rank_, world_size_),
      place_(settings.device),
      model_(kImagePixels, settings.hidden_units, kClasses, settings.seed),
      sgd_(model_.parameter_count(), settings.learning_rate, settings.momentum),
      gradient_(model_.parameter_count() + 1) {
  ShareNewest(state, model_.parameter_count(), place_);
  // Without a state the seed gives all ranks the same parameters.
  if (state.parameters.empty()) return;
  std::copy(state.parameters.begin(), state.parameters.end(),
            model_.parameters().begin());
  std::copy(state.velocity.begin(), state.velocity.end(),
            sgd_.velocity().begin());
  losses_ = std::move(state.losses);
  epoch_ = state.epoch;
  step_ = state.step;
}

TrainingState Trainer::state() {
  return {
      .epoch = epoch_,
      .step = step_,
      .parameters = {model_.parameters().begin(), model_.parameters().end()},
      .velocity = {sgd_.velocity().begin(), sgd_.velocity().end()},
      .losses = losses_};
}

void Trainer::Load(const LabelledImages& images,
                   const std::vector<size_t>& items) {
  examples_.resize(kImagePixels, static_cast<Eigen::Index>(items.size()));
  labels_.resize(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const std::span<const uint8_t> image = images.image(items[i]);
    const Eigen::Map<const Eigen::Array<uint8_t, Eigen::Dynamic, 1>> pixels(
        image.data(), kImagePixels);
    examples_.col(static_cast<Eigen::Index>(i)) =
        (pixels.cast<float>() / 255.0f - kPixelMean) / kPixelDeviation;
    labels_[i] = images.label(items[i]);
  }
}

float Trainer::Step(const std::vector<size_t>& batch) {
  const std::span<float> values = gradient_.values();
  const std::span<float> gradient = values.first(model_.parameter_count());
  if (batch.empty()) {
    // More ranks than images: the others make the step.
    std::ranges::fill(values, 0.0f);
  } else {
    Load(train_, batch);
    values.back() = model_.Gradient(examples_, labels_, gradient);
  }
  // Parts may differ by an image, so each mean is weighted by its share, and
  // the sum is the mean of the whole batch.
  const float share = static_cast<float>(batch.size()) /
                      static_cast<float>(settings_.global_batch);
  for (float& value : values) value *= share;
  place_.With(gradient_.tensor(),
              [](const Tensor& tensor) { AllReduce(tensor); });
  sgd_.Step(gradient, model_.parameters());
  return values.back();
}

double Trainer::TestAccuracy() {
  std::vector<int64_t> correct = {0};
  std::vector<size_t> batch;
  for (size_t i = static_cast<size_t>(rank_); i < test_.size();
       i += static_cast<size_t>(world_size_)) {
    batch.push_back(i);
    const bool last = i + static_cast<size_t>(world_size_) >= test_.size();
    if (batch.size() == kTestBatch || last) {
      Load(test_, batch);
      correct[0] += model_.CountCorrect(examples_, labels_);
      batch.clear();
    }
  }
  place_.With(correct, [](const Tensor& tensor) { AllReduce(tensor); });
  return static_cast<double>(correct[0]) / static_cast<double>(test_.size());
}

bool Trainer::done() const {
  return settings_.max_steps > 0 &&
         losses_.size() >= static_cast<size_t>(settings_.max_steps);
}

EpochResult Trainer::RunEpoch(const OnStep& on_step) {
  const auto start = std::chrono::steady_clock::now();
  sampler_.SetEpoch(epoch_ - 1);
  // Large steps first, then smaller ones.
  sgd_.set_learning_rate(settings_.learning_rate *
                         static_cast<float>(settings_.epochs - epoch_ + 1) /
                         static_cast<float>(settings_.epochs));
  const int steps = static_cast<int>(sampler_.steps_per_epoch());
  const size_t first = losses_.size();
  while (step_ < steps && !done()) {
    losses_.push_back(Step(sampler_.Batch(static_cast<size_t>(step_))));
    ++step_;
    on_step({.epoch = epoch_,
             .step = step_,
             .steps = steps,
             .loss = losses_.back()});
  }
  const std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - start;
  const auto made = static_cast<double>(losses_.size() - first);
  EpochResult result = {.epoch = epoch_};
  result.train_seconds = elapsed.count();
  result.loss = std::accumulate(losses_.begin() + static_cast<ptrdiff_t>(first),
                                losses_.end(), 0.0) /
                std::max(made, 1.0);
  result.images_per_second = made * settings_.global_batch / elapsed.count();
  result.test_accuracy = TestAccuracy();
  ++epoch_;
  step_ = 0;
  return result;
}

bool Trainer::ParametersAreEqual() {
  // Compares integers, whose minimum and maximum are equal only if all are:
  // floats may compare equal with different bits, or be NaN.
  std::vector<int32_t> mine(model_.parameter_count());
  std::memcpy(mine.data(), model_.parameters().data(),
              mine.size() * sizeof(int32_t));
  std::vector<int32_t> smallest = mine;
  std::vector<int32_t> largest = mine;
  place_.With(smallest, [](const Tensor& tensor) {
    AllReduce(tensor, {.op = ReduceOp::kMin});
  });
  place_.With(largest, [](const Tensor& tensor) {
    AllReduce(tensor, {.op = ReduceOp::kMax});
  });
  return smallest == largest;
}

}  // namespace muster::examples
