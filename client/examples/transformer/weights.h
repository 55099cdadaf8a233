#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_WEIGHTS_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/examples/transformer/layer.h"
#include "client/examples/transformer/layout.h"
#include "muster/checkpoint.h"
#include "muster/device_mesh.h"
#include "muster/sharded_optimizer.h"

namespace muster::examples {

// Weights owns the weights and gradients of this rank's layers. This is all
// that data parallel and sharded training differ in. Layers are counted from 0
// on this rank. Collective: all ranks make the calls in the same order.
class Weights {
 public:
  virtual ~Weights() = default;

  // The weights of a layer, until Release or GradientsReady.
  virtual std::vector<Tensor> Values(int layer) = 0;
  // Their gradients, to which the layer adds.
  virtual std::vector<Tensor> Gradients(int layer) = 0;
  // The layer has been computed.
  virtual void Release(int layer) = 0;
  // Its gradients of this step are complete; their reduction may begin.
  virtual void GradientsReady(int layer) = 0;
  // All gradients are averages of the data parallel ranks when it returns.
  virtual void FinishStep() = 0;
  virtual void ZeroGradients() = 0;

  // The tensors that this rank updates, and where they lie in the whole ones:
  // boxes()[i] is the value of tensors()[i]. Neither changes.
  virtual const std::vector<OptimizedTensor>& tensors() const = 0;
  virtual const std::vector<CheckpointShard>& boxes() const = 0;
};

// With their first values, which depend on the seed and the parameters' names
// alone: they are the same for every layout.
std::unique_ptr<Weights> MakeWeights(
    const std::vector<std::unique_ptr<Layer>>& layers, DataType data_type,
    uint64_t seed, const Layout& layout, const DeviceMesh& mesh);

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_WEIGHTS_H_
