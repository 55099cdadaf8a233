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
#include "client/examples/place.h"

namespace muster::examples {

struct TrainingSettings {
  int hidden_units = 128;
  int epochs = 5;
  // Images of one step, over all ranks.
  int global_batch = 128;
  // Of the first epoch; it falls by the same amount with every epoch.
  float learning_rate = 0.05f;
  float momentum = 0.9f;
  uint64_t seed = 1;
  // Ends the training after this many steps; 0: only the epochs count.
  int max_steps = 0;
  // The CUDA device in whose memory collectives find their tensors; none: the
  // host's.
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
// wherever the collectives' tensors are (place.h).
class Trainer {
 public:
  // Begins with `state`, or, where no rank has one, anew: ranks may have made
  // different numbers of steps, and new ones none (ShareNewest). Collective.
  // The images must outlive it. Throws std::invalid_argument (settings),
  // std::runtime_error (a state of another model), DistError (no such device).
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

  // Trains the rest of epoch(), which then is the next one, and counts how many
  // test images come out right. Collective.
  EpochResult RunEpoch(const OnStep& on_step);

  // The epoch that runs, or comes next; from 1.
  int epoch() const { return epoch_; }

  // After the last step that was made, also when an exception ended RunEpoch.
  TrainingState state();

  // Whether max_steps is reached.
  bool done() const;

  // The loss of every step so far, over all ranks.
  const std::vector<float>& losses() const { return losses_; }

  // Whether all ranks hold the same parameters, bit for bit. Collective.
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
  Place place_;
  Perceptron model_;
  Sgd sgd_;
  int epoch_ = 1;
  int step_ = 0;  // of the epoch, the next one
  // The gradient, and after it the loss: one collective carries both.
  Floats gradient_;
  std::vector<float> losses_;
  // The batch that Load filled.
  Eigen::MatrixXf examples_;
  std::vector<int> labels_;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRAINER_H_
