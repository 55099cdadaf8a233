#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_MLP_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_MLP_H_

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "client/examples/transformer/residual.h"

namespace muster::examples {

// Mlp is a hidden layer of four times the width with GELU, by the formula with
// tanh. A tensor parallel rank has some of the hidden units.
template <typename T>
class Mlp : public Residual<T> {
 public:
  Mlp(const std::string& name, const ModelSettings& settings,
      const TensorParallelOptions& tensor_parallel)
      : Residual<T>(name, settings.width, Parameters(name, settings),
                    tensor_parallel) {}

 protected:
  Matrix<T> BranchForward(const Microbatch& microbatch,
                          const std::vector<Tensor>& weights,
                          const Matrix<T>& input) override {
    Kept& kept = kept_[microbatch.number];
    kept.before.noalias() = input * ToMatrix<T>(weights[kIn]).transpose();
    const auto x = kept.before.array();
    kept.tanh = (kScale * (x + kCubic * x.cube())).tanh();
    kept.after = T(0.5) * x * (1 + kept.tanh.array());
    return kept.after * ToMatrix<T>(weights[kOut]).transpose();
  }

  Matrix<T> BranchBackward(const Microbatch& microbatch,
                           const std::vector<Tensor>& weights,
                           const std::vector<Tensor>& weight_gradients,
                           const Matrix<T>& input,
                           const Eigen::Map<Matrix<T>>& gradient) override {
    Kept& kept = kept_[microbatch.number];
    ToMatrix<T>(weight_gradients[kOut]).noalias() +=
        gradient.transpose() * kept.after;
    Matrix<T> hidden = gradient * ToMatrix<T>(weights[kOut]);
    const auto x = kept.before.array();
    const auto tanh = kept.tanh.array();
    hidden.array() *= T(0.5) * (1 + tanh) + T(0.5) * x * (1 - tanh.square()) *
                                                kScale *
                                                (1 + 3 * kCubic * x.square());
    ToMatrix<T>(weight_gradients[kIn]).noalias() += hidden.transpose() * input;
    return hidden * ToMatrix<T>(weights[kIn]);
  }

 private:
  enum : size_t { kIn = Residual<T>::kFirst, kOut };

  static constexpr T kScale = T(0.7978845608028654);  // sqrt(2 / pi)
  static constexpr T kCubic = T(0.044715);

  struct Kept {
    Matrix<T> before;
    Matrix<T> tanh;
    Matrix<T> after;
  };

  static std::vector<ParameterSpec> Parameters(const std::string& name,
                                               const ModelSettings& settings) {
    const int64_t hidden = 4 * settings.width;
    const double deviation = 1 / std::sqrt(static_cast<double>(settings.width));
    return {
        {name + ".in", {hidden, settings.width}, Shard(0), 0, deviation},
        {name + ".out",
         {settings.width, hidden},
         Shard(1),
         0,
         deviation / std::sqrt(8.0 * static_cast<double>(settings.blocks))}};
  }

  std::map<int, Kept> kept_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_MLP_H_
