#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_RESIDUAL_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_RESIDUAL_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/examples/transformer/layer.h"
#include "client/examples/transformer/layer_norm.h"
#include "client/examples/transformer/matrix.h"
#include "muster/tensor_parallel.h"

namespace muster::examples {

// Residual adds a branch to its input: x + branch(norm(x)). A tensor parallel
// rank computes its part of the branch, from columns of the first weights to
// rows of the last one, and the parts are added up.
template <typename T>
class Residual : public Layer {
 public:
  Residual(const std::string& name, int64_t width,
           const std::vector<ParameterSpec>& branch,
           const TensorParallelOptions& tensor_parallel)
      : Layer(Join(LayerNorm<T>::Parameters(name, width), branch)),
        tensor_parallel_(tensor_parallel) {}

  void Forward(const Microbatch& microbatch, const std::vector<Tensor>& weights,
               const Tensor& activations) override {
    Kept& kept = kept_[microbatch.number];
    auto x = ToMatrix<T>(activations);
    kept.input = kept.norm.Forward(weights[kGain], weights[kBias], x);
    Matrix<T> sum = BranchForward(microbatch, weights, kept.input);
    RegionForward(Region::kReduce, ToTensor(sum), ToTensor(sum),
                  tensor_parallel_);
    x += sum;
  }

  void Backward(const Microbatch& microbatch,
                const std::vector<Tensor>& weights,
                const std::vector<Tensor>& weight_gradients,
                const Tensor& gradient) override {
    Kept& kept = kept_[microbatch.number];
    auto dx = ToMatrix<T>(gradient);
    Matrix<T> sum =
        BranchBackward(microbatch, weights, weight_gradients, kept.input, dx);
    RegionBackward(Region::kCopy, ToTensor(sum), ToTensor(sum),
                   tensor_parallel_);
    dx += kept.norm.Backward(weights[kGain], weight_gradients[kGain],
                             weight_gradients[kBias], sum);
  }

 protected:
  // The branch's weights are those from kFirst on.
  enum : size_t { kGain, kBias, kFirst };

  // Returns this rank's part of the branch's output.
  virtual Matrix<T> BranchForward(const Microbatch& microbatch,
                                  const std::vector<Tensor>& weights,
                                  const Matrix<T>& input) = 0;
  // Returns this rank's part of the gradient of the branch's input.
  virtual Matrix<T> BranchBackward(const Microbatch& microbatch,
                                   const std::vector<Tensor>& weights,
                                   const std::vector<Tensor>& weight_gradients,
                                   const Matrix<T>& input,
                                   const Eigen::Map<Matrix<T>>& gradient) = 0;

 private:
  struct Kept {
    LayerNorm<T> norm;
    Matrix<T> input;  // of the branch
  };

  static std::vector<ParameterSpec> Join(
      std::vector<ParameterSpec> norm,
      const std::vector<ParameterSpec>& branch) {
    norm.insert(norm.end(), branch.begin(), branch.end());
    return norm;
  }

  const TensorParallelOptions tensor_parallel_;
  std::map<int, Kept> kept_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_RESIDUAL_H_
