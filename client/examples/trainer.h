#ifndef MUSTER_CLIENT_EXAMPLES_TRAINER_H_
#define MUSTER_CLIENT_EXAMPLES_TRAINER_H_

#include <Eigen/Core>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "client/examples/checkpoint.h"
#include "client/examples/distributed_sampler.h"
#include "client/examples/fashion_mnist.h"
#include "client/examples/perceptron.h"
#include "client/examples/tensor_device.h"

namespace muster::examples {

struct TrainingSettings {
  int hidden_units = 128;
  int epochs = 5;
  // Images of one step, over all ranks.
  int global_batch = 128;
  // In the first epoch; falls by the same amount with every epoch.
  float learning_rate = 0.05f;
  float momentum = 0.9f;
  uint64_t seed = 1;
  // Stops after this many steps; 0: no limit.
  int max_steps = 0;
  // The CUDA device with the collectives' tensors; nullopt: the host.
  std::optional<int> device = std::nullopt;
};

struct EpochResult {
  int epoch = 0;  // from 1
  double loss = 0;
  double test_accuracy = 0;      // 0 to 1
  double images_per_second = 0;  // over all ranks, training alone
  double train_seconds = 0;
};

// Trainer is synchronous data-parallel training on the default group: every
// rank computes the gradient of its part of the batch, one AllReduce averages
// the gradients, and every rank makes the same step. It computes on the host,
// wherever the collectives' tensors are (tensor_device.h).
class Trainer {
 public:
  // Starts with the newest `state` of any rank (ShareNewest), or anew if no
  // rank has one. Collective. The images must outlive it. Throws
  // std::invalid_argument (settings), std::runtime_error (a state of another
  // model), DistError (no such device).
  Trainer(const TrainingSettings& settings, const LabelledImages& train,
          const LabelledImages& test, TrainingState state = {});

  // Called on every rank after each step.
  struct Progress {
    int epoch = 0;
    int step = 0;
    int steps = 0;
    float loss = 0;
  };
  using OnStep = std::function<void(const Progress&)>;

  // Trains the rest of epoch() and moves to the next epoch. Then counts the
  // correct test images. Collective.
  EpochResult RunEpoch(const OnStep& on_step);

  // The current or next epoch; from 1.
  int epoch() const { return epoch_; }

  // The state after the last step, even if an exception ended RunEpoch.
  TrainingState state();

  // Whether max_steps is reached.
  bool done() const;

  // The loss of every step so far, over all ranks.
  const std::vector<float>& losses() const { return losses_; }

  // Whether all ranks have bitwise equal parameters. Collective.
  bool ParametersAreEqual();

 private:
  float Step(const std::vector<size_t>& batch);
  double TestAccuracy();
  void Load(const LabelledImages& images, const std::vector<size_t>& items);

  const TrainingSettings settings_;
  const LabelledImages& train_;
  const LabelledImages& test_;
  const int rank_;
  const int world_size_;
  DistributedSampler sampler_;
  TensorDevice place_;
  Perceptron model_;
  Sgd sgd_;
  int epoch_ = 1;
  int step_ = 0;  // the next step of the epoch
  // The gradient, then the loss: one collective reduces both.
  Floats gradient_;
  std::vector<float> losses_;
  // The batch that Load filled.
  Eigen::MatrixXf examples_;
  std::vector<int> labels_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRAINER_H_
