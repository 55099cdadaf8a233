// Ranks as threads, in a mesh of (replicate, shard), and a small model that
// they train.

#ifndef MUSTER_CLIENT_PARALLEL_SHARD_TESTING_H_
#define MUSTER_CLIENT_PARALLEL_SHARD_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "muster/fully_shard.h"
#include "muster/process_group.h"

namespace muster::testing {

// One rank of a ShardWorld.
struct ShardRank {
  int replica = 0;
  int shard = 0;
  // Has both groups.
  FullyShardOptions options;
};

class ShardWorld {
 public:
  explicit ShardWorld(int shards, int replicas = 1,
                      const std::string& backend = "gloo");

  // As LocalGroups::OnEachRank: the errors of (replica 0, shard 0), (0, 1), ...
  std::vector<std::string> OnEachRank(
      const std::function<void(const ShardRank&)>& body);
  // Ends a rank's membership in its groups.
  void Leave(const ShardRank& rank);
  int replicas() const { return static_cast<int>(lines_.size()); }
  int shards() const { return shards_; }

 private:
  const int shards_;
  // The shard group of each replica; the replicas of each shard.
  std::vector<std::unique_ptr<LocalGroups>> lines_;
  std::vector<std::unique_ptr<LocalGroups>> columns_;
};

// The elements of a tensor of the four floating-point types.
std::vector<double> ToDoubles(const Tensor& tensor);
void AddDoubles(const Tensor& tensor, const std::vector<double>& values);

// A perceptron of three layers, 5 -> 7 -> 6 -> 3, with tanh between them and
// half the squared error, averaged over the samples. Computes in double.
class Perceptron {
 public:
  static constexpr int kLayers = 3;

  struct Layer {
    std::vector<double> weight;  // [outputs, inputs]
    std::vector<double> bias;    // [outputs]
  };

  static int64_t Inputs(int layer);
  static int64_t Outputs(int layer);
  // The same on every call.
  static std::vector<Layer> InitialLayers();

  // Samples [first, first + count) of a fixed set.
  Perceptron(int first, int count);

  // Layers are given in the order of use: forward 0, 1, 2, backward 2, 1, 0.
  void Forward(int layer, const Layer& parameters);
  // Returns the gradients of `layer`.
  Layer Backward(int layer, const Layer& parameters);
  double Loss() const;

 private:
  const int first_;
  const int count_;
  // The inputs of each layer, and the output of the last: [samples, width].
  std::vector<std::vector<double>> activations_;
  std::vector<double> back_;
};

// The optimizers, written for the tests alone.
enum class TestRule { kSgd, kAdamW };
OptimizerRule ToRule(TestRule rule);
inline constexpr double kLearningRate = 0.05;

// Trains on `samples` samples in one process. If `max_norm` is not 0, clips the
// gradients.
std::vector<Perceptron::Layer> TrainReference(TestRule rule, int samples,
                                              int steps, double max_norm = 0);

// A perceptron's parameters as tensors of `type`.
class PerceptronTensors {
 public:
  explicit PerceptronTensors(DataType type);
  // A group for each layer, or one for all.
  std::vector<ShardGroup> Groups() const;
  const Tensor& weight(int layer) const { return tensors_[2 * layer]; }
  const Tensor& bias(int layer) const { return tensors_[2 * layer + 1]; }

 private:
  std::vector<std::vector<double>> memory_;
  std::vector<Tensor> tensors_;
};

// The largest difference between parameters and the reference.
double Difference(const std::vector<Perceptron::Layer>& reference, int layer,
                  bool bias, const Tensor& value);

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_PARALLEL_SHARD_TESTING_H_
