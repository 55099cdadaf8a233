#include "client/examples/perceptron.h"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <cmath>
#include <vector>

namespace muster::examples {
namespace {

constexpr int kInputs = 5;
constexpr int kHidden = 4;
constexpr int kClasses = 3;

Perceptron SmallModel() { return Perceptron(kInputs, kHidden, kClasses, 11); }

// Six different examples.
Eigen::MatrixXf Examples() {
  Eigen::MatrixXf examples(kInputs, 6);
  for (int i = 0; i < 6; ++i) {
    for (int k = 0; k < kInputs; ++k) {
      examples(k, i) = std::sin(1.7f * static_cast<float>(i * kInputs + k));
    }
  }
  return examples;
}
const std::vector<int> kLabels = {0, 1, 2, 2, 1, 0};

TEST(PerceptronTest, GradientIsTheSlopeOfTheLoss) {
  Perceptron model = SmallModel();
  const Eigen::MatrixXf examples = Examples();
  std::vector<float> gradient(model.parameter_count());
  std::vector<float> unused(model.parameter_count());
  model.Gradient(examples, kLabels, gradient);
  for (size_t i = 0; i < model.parameter_count(); ++i) {
    constexpr float kStep = 1e-2f;
    const float value = model.parameters()[i];
    model.parameters()[i] = value + kStep;
    const float above = model.Gradient(examples, kLabels, unused);
    model.parameters()[i] = value - kStep;
    const float below = model.Gradient(examples, kLabels, unused);
    model.parameters()[i] = value;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-3) << i;
  }
}

TEST(PerceptronTest, LossOfUniformScoresIsTheLogarithmOfTheClasses) {
  Perceptron model = SmallModel();
  std::fill(model.parameters().begin(), model.parameters().end(), 0.0f);
  std::vector<float> gradient(model.parameter_count());
  EXPECT_NEAR(model.Gradient(Examples(), kLabels, gradient), std::log(3.0),
              1e-6);
}

TEST(PerceptronTest, LargeScoresStayFinite) {
  Perceptron model = SmallModel();
  for (float& parameter : model.parameters()) parameter *= 1e4f;
  std::vector<float> gradient(model.parameter_count());
  EXPECT_TRUE(std::isfinite(model.Gradient(Examples(), kLabels, gradient)));
  for (const float slope : gradient) EXPECT_TRUE(std::isfinite(slope));
}

TEST(PerceptronTest, GradientOfTheWholeIsTheMeanOfItsParts) {
  Perceptron model = SmallModel();
  const Eigen::MatrixXf examples = Examples();
  std::vector<float> whole(model.parameter_count());
  std::vector<float> left(model.parameter_count());
  std::vector<float> right(model.parameter_count());
  model.Gradient(examples, kLabels, whole);
  model.Gradient(examples.leftCols(3), {0, 1, 2}, left);
  model.Gradient(examples.rightCols(3), {2, 1, 0}, right);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(whole[i], (left[i] + right[i]) / 2, 1e-6) << i;
  }
}

TEST(PerceptronTest, LearnsItsExamples) {
  Perceptron model(kInputs, 16, kClasses, 11);
  Sgd sgd(model.parameter_count(), 0.1f, 0.9f);
  const Eigen::MatrixXf examples = Examples();
  std::vector<float> gradient(model.parameter_count());
  const float before = model.Gradient(examples, kLabels, gradient);
  float after = before;
  for (int step = 0; step < 300; ++step) {
    after = model.Gradient(examples, kLabels, gradient);
    sgd.Step(gradient, model.parameters());
  }
  EXPECT_LT(after, 0.1f * before);
  EXPECT_EQ(model.CountCorrect(examples, kLabels), 6);
}

TEST(PerceptronTest, SeedDecidesTheParameters) {
  Perceptron a = SmallModel();
  Perceptron b = SmallModel();
  Perceptron c(kInputs, kHidden, kClasses, 12);
  const std::vector<float> of_a(a.parameters().begin(), a.parameters().end());
  EXPECT_EQ(of_a,
            std::vector<float>(b.parameters().begin(), b.parameters().end()));
  EXPECT_NE(of_a,
            std::vector<float>(c.parameters().begin(), c.parameters().end()));
}

}  // namespace
}  // namespace muster::examples
