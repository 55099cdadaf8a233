#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_ATTENTION_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_ATTENTION_H_

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "client/examples/transformer/residual.h"

namespace muster::examples {

// Attention lets each character look at those before it and itself, by several
// heads. A tensor parallel rank has some of the heads.
template <typename T>
class Attention : public Residual<T> {
 public:
  Attention(const std::string& name, const ModelSettings& settings,
            const TensorParallelOptions& tensor_parallel)
      : Residual<T>(name, settings.width, Parameters(name, settings),
                    tensor_parallel),
        context_(settings.context),
        head_width_(settings.width / settings.heads) {}

 protected:
  Matrix<T> BranchForward(const Microbatch& microbatch,
                          const std::vector<Tensor>& weights,
                          const Matrix<T>& input) override {
    Kept& kept = kept_[microbatch.number];
    const auto multiply = [&](Matrix<T>& to, size_t weight) {
      to.noalias() = input * ToMatrix<T>(weights[weight]).transpose();
    };
    multiply(kept.query, kQuery);
    multiply(kept.key, kKey);
    multiply(kept.value, kValue);
    kept.mixed.resize(input.rows(), kept.query.cols());
    kept.shares.resize(CountHeads(kept.query));
    for (size_t head = 0; head < kept.shares.size(); ++head) {
      Matrix<T>& shares = kept.shares[head];
      shares.noalias() = Scale() * FindHead(kept.query, head) *
                         FindHead(kept.key, head).transpose();
      for (Eigen::Index i = 0; i < context_; ++i) {
        auto row = shares.row(i).head(i + 1).array();
        row = (row - row.maxCoeff()).exp();
        row /= row.sum();
        shares.row(i).tail(context_ - i - 1).setZero();
      }
      FindHead(kept.mixed, head).noalias() =
          shares * FindHead(kept.value, head);
    }
    return kept.mixed * ToMatrix<T>(weights[kProjection]).transpose();
  }

  Matrix<T> BranchBackward(const Microbatch& microbatch,
                           const std::vector<Tensor>& weights,
                           const std::vector<Tensor>& weight_gradients,
                           const Matrix<T>& input,
                           const Eigen::Map<Matrix<T>>& gradient) override {
    Kept& kept = kept_[microbatch.number];
    ToMatrix<T>(weight_gradients[kProjection]).noalias() +=
        gradient.transpose() * kept.mixed;
    const Matrix<T> mixed = gradient * ToMatrix<T>(weights[kProjection]);
    Matrix<T> query(mixed.rows(), mixed.cols());
    Matrix<T> key(mixed.rows(), mixed.cols());
    Matrix<T> value(mixed.rows(), mixed.cols());
    Matrix<T> scores;
    for (size_t head = 0; head < kept.shares.size(); ++head) {
      const Matrix<T>& shares = kept.shares[head];
      const auto mixed_head = FindHead(mixed, head);
      FindHead(value, head).noalias() = shares.transpose() * mixed_head;
      scores.noalias() = mixed_head * FindHead(kept.value, head).transpose();
      // The gradient of softmax.
      const Eigen::Array<T, Eigen::Dynamic, 1> along =
          (scores.array() * shares.array()).rowwise().sum();
      scores.array().colwise() -= along;
      scores.array() *= Scale() * shares.array();
      FindHead(query, head).noalias() = scores * FindHead(kept.key, head);
      FindHead(key, head).noalias() =
          scores.transpose() * FindHead(kept.query, head);
    }
    Matrix<T> result = Matrix<T>::Zero(input.rows(), input.cols());
    const auto multiply = [&](const Matrix<T>& from, size_t weight) {
      ToMatrix<T>(weight_gradients[weight]).noalias() +=
          from.transpose() * input;
      result.noalias() += from * ToMatrix<T>(weights[weight]);
    };
    multiply(query, kQuery);
    multiply(key, kKey);
    multiply(value, kValue);
    return result;
  }

 private:
  enum : size_t { kQuery = Residual<T>::kFirst, kKey, kValue, kProjection };

  // This rank's heads.
  struct Kept {
    Matrix<T> query;
    Matrix<T> key;
    Matrix<T> value;
    // How much of each other character a character takes, for each head of each
    // sequence.
    std::vector<Matrix<T>> shares;
    Matrix<T> mixed;
  };

  static std::vector<ParameterSpec> Parameters(const std::string& name,
                                               const ModelSettings& settings) {
    const std::vector<int64_t> shape = {settings.width, settings.width};
    const double deviation = 1 / std::sqrt(static_cast<double>(settings.width));
    return {
        {name + ".query", shape, Shard(0), 0, deviation},
        {name + ".key", shape, Shard(0), 0, deviation},
        {name + ".value", shape, Shard(0), 0, deviation},
        // All branches together add about 1 to the variance.
        {name + ".projection", shape, Shard(1), 0,
         deviation / std::sqrt(2.0 * static_cast<double>(settings.blocks))}};
  }

  size_t CountHeads(const Matrix<T>& all) const {
    return static_cast<size_t>(all.size() / (context_ * head_width_));
  }

  // The rows of a sequence and the columns of a head.
  template <typename M>
  auto FindHead(M& all, size_t index) const {
    const Eigen::Index heads = all.cols() / head_width_;
    const auto number = static_cast<Eigen::Index>(index);
    return all.block(number / heads * context_, number % heads * head_width_,
                     context_, head_width_);
  }

  T Scale() const { return 1 / std::sqrt(static_cast<T>(head_width_)); }

  const Eigen::Index context_;
  const Eigen::Index head_width_;
  std::map<int, Kept> kept_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_ATTENTION_H_
