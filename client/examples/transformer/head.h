#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_HEAD_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_HEAD_H_

#include <cmath>
#include <cstddef>
#include <vector>

#include "client/examples/transformer/layer.h"
#include "client/examples/transformer/layer_norm.h"
#include "client/examples/transformer/matrix.h"
#include "muster/tensor_parallel.h"

namespace muster::examples {

// Head is the last layer: the logits of the next character, and their cross
// entropy. A tensor parallel rank has a part of the vocabulary. It keeps one
// microbatch.
template <typename T>
class Head : public LossLayer {
 public:
  Head(const ModelSettings& settings,
       const TensorParallelOptions& tensor_parallel)
      : LossLayer(Parameters(settings)),
        vocabulary_(settings.vocabulary),
        tensor_parallel_(tensor_parallel) {}

  void Forward(const Microbatch& microbatch, const std::vector<Tensor>& weights,
               const Tensor& activations) override {
    input_ =
        norm_.Forward(weights[kGain], weights[kBias], ToMatrix<T>(activations));
    softmax_.noalias() = input_ * ToMatrix<T>(weights[kWeight]).transpose();
    losses_.resize(input_.rows(), 1);
    ParallelCrossEntropyForward(Row(losses_), ToTensor(softmax_),
                                ToTensor(softmax_), Row(microbatch.targets),
                                vocabulary_, tensor_parallel_);
    loss_ = losses_.template cast<double>().mean();
  }

  void Backward(const Microbatch& microbatch,
                const std::vector<Tensor>& weights,
                const std::vector<Tensor>& weight_gradients,
                const Tensor& gradient) override {
    losses_.setConstant(static_cast<T>(loss_weight_ / losses_.rows()));
    ParallelCrossEntropyBackward(ToTensor(softmax_), ToTensor(softmax_),
                                 Row(microbatch.targets), Row(losses_),
                                 vocabulary_, tensor_parallel_);
    ToMatrix<T>(weight_gradients[kWeight]).noalias() +=
        softmax_.transpose() * input_;
    Matrix<T> sum = softmax_ * ToMatrix<T>(weights[kWeight]);
    RegionBackward(Region::kCopy, ToTensor(sum), ToTensor(sum),
                   tensor_parallel_);
    ToMatrix<T>(gradient) = norm_.Backward(
        weights[kGain], weight_gradients[kGain], weight_gradients[kBias], sum);
  }

 private:
  enum : size_t { kGain, kBias, kWeight };

  static std::vector<ParameterSpec> Parameters(const ModelSettings& settings) {
    auto parameters = LayerNorm<T>::Parameters("head", settings.width);
    parameters.push_back(
        {"head.weight",
         {settings.vocabulary, settings.width},
         Shard(0),
         0,
         // Small, so that all characters are about equally likely at first.
         0.1 / std::sqrt(static_cast<double>(settings.width))});
    return parameters;
  }

  // The same memory as one dimension.
  static Tensor Row(const Tensor& tensor) {
    return {tensor.data(), tensor.data_type(), {tensor.element_count()}};
  }
  static Tensor Row(Matrix<T>& matrix) { return Row(ToTensor(matrix)); }

  const int64_t vocabulary_;
  const TensorParallelOptions tensor_parallel_;
  LayerNorm<T> norm_;
  Matrix<T> input_;
  // The logits, then their softmax, then their gradient.
  Matrix<T> softmax_;
  Matrix<T> losses_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_HEAD_H_
