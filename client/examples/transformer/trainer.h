#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_TRAINER_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_TRAINER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/examples/transformer/layer.h"
#include "client/examples/transformer/layout.h"
#include "client/examples/transformer/stage.h"
#include "client/examples/transformer/text.h"
#include "client/examples/transformer/weights.h"
#include "muster/checkpoint.h"
#include "muster/device_mesh.h"
#include "muster/pipeline.h"
#include "muster/sharded_optimizer.h"

namespace muster::examples {

struct TrainingSettings {
  ModelSettings model = {};
  // Sequences of one step, over all ranks, and in how many parts they go
  // through a pipeline.
  int64_t global_batch = 16;
  int64_t microbatches = 1;
  // The highest, at step `warmup_steps`; it rises until then evenly, and falls
  // with the square root of the step afterwards.
  double learning_rate = 3e-3;
  int64_t warmup_steps = 50;
  uint64_t seed = 1;
  // Empty: no checkpoints.
  std::string checkpoint = {};
};

// Trainer trains the model with AdamW on the default group, in any layout. A
// step has the same sequences in every layout, so losses differ by rounding
// only. All functions but steps() are collective.
class Trainer {
 public:
  // Begins with the newest checkpoint, if there is one, of whatever layout.
  // The text must outlive it. Throws std::invalid_argument for settings that do
  // not fit the layout, with the flag's name and value.
  Trainer(const TrainingSettings& settings, const Layout& layout,
          const Text& text);

  // Makes a step, and returns its loss before it, on all ranks.
  double Step();

  // The loss on the text that is held out.
  double ComputeHeldOutLoss();

  // Saves the state in the background. Throws the error of the checkpoint
  // before, too.
  void Save();
  // Waits until the last checkpoint is durable. Throws its error.
  void AwaitCheckpoint();

  int64_t steps() const { return optimizer_.steps(); }

 private:
  // The gradients, and the loss over all ranks.
  double ComputeGradients(Batch batch);
  double LearningRate() const;
  // This rank's part of a batch.
  SequenceRange MakeRange(int64_t batch, int64_t batches) const;
  // Weights and the optimizer's state.
  std::vector<CheckpointShard> MakeState() const;
  void Resume();

  const TrainingSettings settings_;
  const Text& text_;
  const DeviceMesh mesh_;
  // Ranks with other sequences, and the number of this one.
  const int64_t parts_;
  const int64_t part_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  const std::unique_ptr<Weights> weights_;
  Stage stage_;
  Pipeline pipeline_;
  Optimizer optimizer_;
  std::shared_ptr<CheckpointStorage> storage_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::optional<PendingCheckpoint> pending_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_TRAINER_H_
