#ifndef MUSTER_CLIENT_EXAMPLES_PERCEPTRON_H_
#define MUSTER_CLIENT_EXAMPLES_PERCEPTRON_H_

#include <Eigen/Core>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::examples {

// Perceptron is a classifier with one hidden layer: inputs, hidden units with
// ReLU, classes with softmax. Its parameters lie in one array, and so does the
// gradient: one AllReduce averages all of it.
class Perceptron {
 public:
  // He's initialisation; the same seed gives the same parameters everywhere.
  Perceptron(int inputs, int hidden, int classes, uint64_t seed);

  std::span<float> parameters() { return parameters_; }
  size_t parameter_count() const { return parameters_.size(); }

  // Returns the mean cross entropy of a batch, one column per example, and
  // writes its derivative by every parameter into `gradient`.
  float Gradient(const Eigen::MatrixXf& examples,
                 const std::vector<int>& labels, std::span<float> gradient);

  // The number of correct answers in the batch.
  int CountCorrect(const Eigen::MatrixXf& examples,
                   const std::vector<int>& labels);

 private:
  // The layers as parts of one array of parameters.
  template <typename Scalar>
  struct Layers;

  // Fills hidden_ and scores_ (not yet softmax).
  void Forward(const Eigen::MatrixXf& examples);

  const int inputs_;
  const int hidden_units_;
  const int classes_;
  std::vector<float> parameters_;
  // Members only to reuse their memory.
  Eigen::MatrixXf hidden_;
  Eigen::MatrixXf scores_;
  Eigen::MatrixXf hidden_gradient_;
};

// Stochastic gradient descent with momentum.
class Sgd {
 public:
  Sgd(size_t parameter_count, float learning_rate, float momentum)
      : learning_rate_(learning_rate),
        momentum_(momentum),
        velocity_(parameter_count) {}

  void Step(std::span<const float> gradient, std::span<float> parameters);

  void set_learning_rate(float rate) { learning_rate_ = rate; }
  std::span<float> velocity() { return velocity_; }

 private:
  float learning_rate_;
  const float momentum_;
  std::vector<float> velocity_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_PERCEPTRON_H_
