#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_STAGE_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_STAGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/examples/transformer/layer.h"
#include "client/examples/transformer/text.h"
#include "client/examples/transformer/weights.h"
#include "muster/pipeline.h"

namespace muster::examples {

// Stage computes this rank's layers as a stage of a pipeline, which may be the
// only one.
class Stage {
 public:
  // The layers and the weights must outlive it.
  Stage(const ModelSettings& settings,
        const std::vector<std::unique_ptr<Layer>>& layers, Weights& weights,
        int stage, int stages, int microbatches);

  // The sequences of the next step. Their number is always the same.
  void set_batch(Batch batch) { batch_ = std::move(batch); }

  // For batches of `sequences`. Uses this object.
  PipelineStage Describe(int64_t sequences);

 private:
  void Forward(int number, const Tensor& input, const Tensor& output);
  double ComputeLoss(int number, const Tensor& output,
                     const Tensor& output_gradient);
  void Backward(int number, const Tensor& output_gradient,
                const Tensor& input_gradient);

  Microbatch GetMicrobatch(int number);
  void ForwardLayer(int layer, int number, const Tensor& activations);
  void BackwardLayer(int layer, int number, const Tensor& gradient);
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ + 1 == stages_; }
  // Without the head, which ComputeLoss runs.
  int CountBodyLayers() const {
    return static_cast<int>(layers_.size()) - (is_last() ? 1 : 0);
  }

  const ModelSettings settings_;
  const std::vector<std::unique_ptr<Layer>>& layers_;
  Weights& weights_;
  const int stage_;
  const int stages_;
  const int microbatches_;
  Batch batch_;
  // On the first stage, of the activations between layers.
  std::vector<std::byte> gradient_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_STAGE_H_
