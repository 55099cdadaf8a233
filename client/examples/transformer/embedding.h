#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_EMBEDDING_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_EMBEDDING_H_

#include <cstddef>
#include <vector>

#include "client/examples/transformer/layer.h"
#include "client/examples/transformer/matrix.h"
#include "muster/tensor_parallel.h"

namespace muster::examples {

// Embedding is the first layer: a vector for each character and one for each
// position. A tensor parallel rank has a part of the vocabulary.
template <typename T>
class Embedding : public Layer {
 public:
  Embedding(const ModelSettings& settings,
            const TensorParallelOptions& tensor_parallel)
      : Layer({{"embedding.characters",
                {settings.vocabulary, settings.width},
                Shard(0),
                0,
                kDeviation},
               {"embedding.positions",
                {settings.context, settings.width},
                Replicate(),
                0,
                kDeviation}}),
        settings_(settings),
        tensor_parallel_(tensor_parallel) {}

  void Forward(const Microbatch& microbatch, const std::vector<Tensor>& weights,
               const Tensor& activations) override {
    ParallelEmbeddingForward(Shape(activations), weights[kCharacters],
                             microbatch.ids, settings_.vocabulary,
                             tensor_parallel_);
    RegionForward(Region::kReduce, activations, activations, tensor_parallel_);
    auto x = ToMatrix<T>(activations);
    const auto positions = ToMatrix<T>(weights[kPositions]);
    for (Eigen::Index i = 0; i < x.rows(); i += positions.rows()) {
      x.middleRows(i, positions.rows()) += positions;
    }
  }

  void Backward(const Microbatch& microbatch,
                const std::vector<Tensor>& /*weights*/,
                const std::vector<Tensor>& weight_gradients,
                const Tensor& gradient) override {
    ParallelEmbeddingBackward(weight_gradients[kCharacters], Shape(gradient),
                              microbatch.ids, settings_.vocabulary,
                              tensor_parallel_);
    const auto dx = ToMatrix<T>(gradient);
    auto positions = ToMatrix<T>(weight_gradients[kPositions]);
    for (Eigen::Index i = 0; i < dx.rows(); i += positions.rows()) {
      positions += dx.middleRows(i, positions.rows());
    }
  }

 private:
  enum : size_t { kCharacters, kPositions };

  static constexpr double kDeviation = 0.1;

  // The same memory as [sequences, context, width].
  Tensor Shape(const Tensor& tensor) const {
    return {tensor.data(),
            tensor.data_type(),
            {tensor.element_count() / (settings_.context * settings_.width),
             settings_.context, settings_.width}};
  }

  const ModelSettings settings_;
  const TensorParallelOptions tensor_parallel_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_EMBEDDING_H_
