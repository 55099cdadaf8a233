#include "client/examples/perceptron.h"

#include <cmath>
#include <random>

namespace muster::examples {

template <typename Scalar>
struct Perceptron::Layers {
  using Matrix =
      Eigen::Map<std::conditional_t<std::is_const_v<Scalar>,
                                    const Eigen::MatrixXf, Eigen::MatrixXf>>;
  using Vector =
      Eigen::Map<std::conditional_t<std::is_const_v<Scalar>,
                                    const Eigen::VectorXf, Eigen::VectorXf>>;

  Layers(Scalar* data, int inputs, int hidden, int classes)
      : weights1(data, hidden, inputs),
        bias1(weights1.data() + weights1.size(), hidden),
        weights2(bias1.data() + bias1.size(), classes, hidden),
        bias2(weights2.data() + weights2.size(), classes) {}

  Matrix weights1;
  Vector bias1;
  Matrix weights2;
  Vector bias2;
};

Perceptron::Perceptron(int inputs, int hidden, int classes, uint64_t seed)
    : inputs_(inputs),
      hidden_units_(hidden),
      classes_(classes),
      parameters_(
          static_cast<size_t>(hidden * (inputs + 1) + classes * (hidden + 1))) {
  // By hand: the standard's distributions differ between libraries.
  std::mt19937_64 random(seed);
  const auto fill = [&](auto& weights, int fan_in) {
    const float bound = std::sqrt(6.0f / static_cast<float>(fan_in));
    for (Eigen::Index i = 0; i < weights.size(); ++i) {
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      weights.data()[i] = bound * static_cast<float>(2.0 * unit - 1.0);
    }
  };
  Layers<float> layers(parameters_.data(), inputs, hidden, classes);
  fill(layers.weights1, inputs);
  fill(layers.weights2, hidden);
}

void Perceptron::Forward(const Eigen::MatrixXf& examples) {
  const Layers<const float> layers(parameters_.data(), inputs_, hidden_units_,
                                   classes_);
  hidden_.noalias() = layers.weights1 * examples;
  hidden_ = (hidden_.colwise() + layers.bias1).cwiseMax(0.0f);
  scores_.noalias() = layers.weights2 * hidden_;
  scores_.colwise() += layers.bias2;
}

float Perceptron::Gradient(const Eigen::MatrixXf& examples,
                           const std::vector<int>& labels,
                           std::span<float> gradient) {
  Forward(examples);
  const Eigen::Index count = examples.cols();
  const float scale = 1.0f / static_cast<float>(count);
  double loss = 0;
  for (Eigen::Index i = 0; i < count; ++i) {
    // Softmax and its loss, shifted by the maximum so that exp stays finite.
    // Then the derivative of the loss replaces the scores.
    auto column = scores_.col(i);
    const int label = labels[static_cast<size_t>(i)];
    column.array() -= column.maxCoeff();
    const float label_score = column(label);
    column = column.array().exp();
    const float sum = column.sum();
    loss += std::log(sum) - label_score;
    column *= scale / sum;
    column(label) -= scale;
  }
  const Layers<const float> layers(parameters_.data(), inputs_, hidden_units_,
                                   classes_);
  Layers<float> out(gradient.data(), inputs_, hidden_units_, classes_);
  out.weights2.noalias() = scores_ * hidden_.transpose();
  out.bias2 = scores_.rowwise().sum();
  hidden_gradient_.noalias() = layers.weights2.transpose() * scores_;
  hidden_gradient_.array() *= (hidden_.array() > 0.0f).cast<float>();
  out.weights1.noalias() = hidden_gradient_ * examples.transpose();
  out.bias1 = hidden_gradient_.rowwise().sum();
  return static_cast<float>(loss / static_cast<double>(count));
}

int Perceptron::CountCorrect(const Eigen::MatrixXf& examples,
                             const std::vector<int>& labels) {
  Forward(examples);
  int correct = 0;
  for (Eigen::Index i = 0; i < examples.cols(); ++i) {
    Eigen::Index best = 0;
    scores_.col(i).maxCoeff(&best);
    if (best == labels[static_cast<size_t>(i)]) ++correct;
  }
  return correct;
}

void Sgd::Step(std::span<const float> gradient, std::span<float> parameters) {
  const auto size = static_cast<Eigen::Index>(velocity_.size());
  Eigen::Map<Eigen::ArrayXf> velocity(velocity_.data(), size);
  velocity = momentum_ * velocity +
             Eigen::Map<const Eigen::ArrayXf>(gradient.data(), size);
  Eigen::Map<Eigen::ArrayXf>(parameters.data(), size) -=
      learning_rate_ * velocity;
}

}  // namespace muster::examples
