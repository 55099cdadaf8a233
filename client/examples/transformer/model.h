#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_MODEL_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_MODEL_H_

#include <memory>
#include <vector>

#include "client/examples/transformer/layer.h"
#include "muster/tensor_parallel.h"

namespace muster::examples {

// Makes the layers of one of `stages` stages of the model: an embedding, blocks
// of attention and MLP, and a head, which is a LossLayer. The first stage has
// the embedding, the last one the head, and each has as many blocks as any
// other, or one less.
std::vector<std::unique_ptr<Layer>> MakeLayers(
    const ModelSettings& settings, const TensorParallelOptions& tensor_parallel,
    int stage, int stages);

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_MODEL_H_
