#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LAYER_NORM_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LAYER_NORM_H_

#include <string>
#include <vector>

#include "client/examples/transformer/layer.h"
#include "client/examples/transformer/matrix.h"

namespace muster::examples {

// LayerNorm gives each row the mean 0 and the variance 1, and then a gain and a
// bias for each column. It keeps what its backward needs.
template <typename T>
class LayerNorm {
 public:
  static std::vector<ParameterSpec> Parameters(const std::string& layer,
                                               int64_t width) {
    return {{layer + ".gain", {width}, Replicate(), 1, 0},
            {layer + ".bias", {width}, Replicate(), 0, 0}};
  }

  Matrix<T> Forward(const Tensor& gain, const Tensor& bias,
                    const Eigen::Map<Matrix<T>>& input) {
    normal_ = input.colwise() - input.rowwise().mean();
    scale_ = (normal_.array().square().rowwise().mean() + T(1e-5)).rsqrt();
    normal_.array().colwise() *= scale_;
    Matrix<T> output = normal_.array().rowwise() * Row(gain);
    output.array().rowwise() += Row(bias);
    return output;
  }

  // Returns the gradient of the input.
  Matrix<T> Backward(const Tensor& gain, const Tensor& gain_gradient,
                     const Tensor& bias_gradient, const Matrix<T>& gradient) {
    Row(gain_gradient) += (gradient.array() * normal_.array()).colwise().sum();
    Row(bias_gradient) += gradient.array().colwise().sum();
    Matrix<T> result = gradient.array().rowwise() * Row(gain);
    // Without what would change the mean and the variance.
    const Column along = (result.array() * normal_.array()).rowwise().mean();
    result.colwise() -= result.rowwise().mean().eval();
    result.array() -= normal_.array().colwise() * along;
    result.array().colwise() *= scale_;
    return result;
  }

 private:
  using Column = Eigen::Array<T, Eigen::Dynamic, 1>;

  static auto Row(const Tensor& tensor) {
    return Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>(
        static_cast<T*>(tensor.data()), tensor.element_count());
  }

  Matrix<T> normal_;
  Column scale_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LAYER_NORM_H_
