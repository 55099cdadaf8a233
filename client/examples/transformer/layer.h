#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LAYER_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/placement.h"
#include "muster/process_group.h"

namespace muster::examples {

struct ModelSettings {
  DataType data_type = DataType::kFloat32;  // or kFloat64
  int64_t vocabulary = 0;
  // The most characters that the model sees; the length of all sequences.
  int64_t context = 64;
  int64_t width = 64;
  int64_t heads = 4;
  int64_t blocks = 4;
};

// Some sequences of a step, which go through the model together.
struct Microbatch {
  // Counted from 0 in each step.
  int number = 0;
  // int64[sequences, context]: characters, and those that follow each of them.
  Tensor ids;
  Tensor targets;
};

struct ParameterSpec {
  // Different from all others of the model.
  std::string name;
  // The shape of the whole tensor.
  std::vector<int64_t> shape;
  // The part of it that each tensor parallel rank has.
  Placement placement;
  // Its first values are normally distributed.
  double mean = 0;
  double deviation = 0;
};

// Layer is one part of the model. It computes with weights that it is given at
// each call, this rank's parts of the parameters in their order, and adds to
// their gradients. Tensor parallel ranks run a layer together: its functions
// are collectives of their group, with the same microbatches.
//
// Activations are [sequences * context, width], whole on all tensor parallel
// ranks, and change in place. What a backward needs of its forward, the layer
// keeps for each microbatch.
class Layer {
 public:
  explicit Layer(std::vector<ParameterSpec> parameters)
      : parameters_(std::move(parameters)) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }

  // From the layer's input to its output.
  virtual void Forward(const Microbatch& microbatch,
                       const std::vector<Tensor>& weights,
                       const Tensor& activations) = 0;

  // From the gradient of its output to that of its input.
  virtual void Backward(const Microbatch& microbatch,
                        const std::vector<Tensor>& weights,
                        const std::vector<Tensor>& weight_gradients,
                        const Tensor& gradient) = 0;

 private:
  const std::vector<ParameterSpec> parameters_;
};

// LossLayer is a last layer. Its Backward ignores the gradient that it is given
// and writes that of its input.
class LossLayer : public Layer {
 public:
  using Layer::Layer;
  // The average over the characters of the last Forward.
  double loss() const { return loss_; }
  // The factor of the loss in the gradients.
  void set_loss_weight(double weight) { loss_weight_ = weight; }

 protected:
  double loss_ = 0;
  double loss_weight_ = 1;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LAYER_H_
