#include "client/parallel/shard/testing.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "Eigen/Core"
#include "muster/errors.h"

namespace muster::testing {
namespace {

constexpr int64_t kWidths[] = {5, 7, 6, 3};

template <typename Body>
void WithType(DataType type, const Body& body) {
  switch (type) {
    case DataType::kFloat64:
      return body(double{});
    case DataType::kFloat16:
      return body(Eigen::half{});
    case DataType::kBfloat16:
      return body(Eigen::bfloat16{});
    default:
      return body(float{});
  }
}

// Sample `sample`'s input or target `i`.
double Input(int sample, int64_t i) {
  return std::sin(1.0 + 0.7 * sample + 1.3 * static_cast<double>(i));
}
double Target(int sample, int64_t i) {
  return std::cos(0.4 * sample - 0.9 * static_cast<double>(i));
}

}  // namespace

ShardWorld::ShardWorld(int shards, int replicas, const std::string& backend)
    : shards_(shards) {
  const std::chrono::seconds timeout(60);
  for (int i = 0; i < replicas; ++i) {
    lines_.push_back(std::make_unique<LocalGroups>(shards, timeout, backend));
  }
  for (int i = 0; i < shards && replicas > 1; ++i) {
    columns_.push_back(
        std::make_unique<LocalGroups>(replicas, timeout, backend));
  }
}

std::vector<std::string> ShardWorld::OnEachRank(
    const std::function<void(const ShardRank&)>& body) {
  std::vector<std::string> thrown(lines_.size() * static_cast<size_t>(shards_));
  std::vector<std::thread> threads;
  for (int replica = 0; replica < replicas(); ++replica) {
    for (int shard = 0; shard < shards_; ++shard) {
      threads.emplace_back([&, replica, shard] {
        ShardRank rank = {.replica = replica, .shard = shard, .options = {}};
        rank.options.group = lines_[replica]->at(shard);
        if (!columns_.empty()) {
          rank.options.replicate_group = columns_[shard]->at(replica);
        }
        try {
          body(rank);
        } catch (const DistError& error) {
          thrown[replica * shards_ + shard] = error.what();
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

void ShardWorld::Leave(const ShardRank& rank) {
  lines_[rank.replica]->Leave(rank.shard);
  if (!columns_.empty()) columns_[rank.shard]->Leave(rank.replica);
}

std::vector<double> ToDoubles(const Tensor& tensor) {
  std::vector<double> values;
  WithType(tensor.data_type(), [&]<typename T>(T) {
    const T* const elements = static_cast<const T*>(tensor.data());
    for (int64_t i = 0; i < tensor.element_count(); ++i) {
      values.push_back(static_cast<double>(elements[i]));
    }
  });
  return values;
}

void AddDoubles(const Tensor& tensor, const std::vector<double>& values) {
  WithType(tensor.data_type(), [&]<typename T>(T) {
    T* const elements = static_cast<T*>(tensor.data());
    for (size_t i = 0; i < values.size(); ++i) {
      elements[i] =
          static_cast<T>(static_cast<double>(elements[i]) + values[i]);
    }
  });
}

int64_t Perceptron::Inputs(int layer) { return kWidths[layer]; }
int64_t Perceptron::Outputs(int layer) { return kWidths[layer + 1]; }

std::vector<Perceptron::Layer> Perceptron::InitialLayers() {
  std::mt19937 random(49);
  std::uniform_real_distribution<double> uniform(-0.5, 0.5);
  std::vector<Layer> layers(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    layers[layer].weight.resize(Inputs(layer) * Outputs(layer));
    layers[layer].bias.resize(Outputs(layer));
    // Exact in float16 and bfloat16.
    const auto draw = [&] { return std::round(64 * uniform(random)) / 64; };
    std::generate(layers[layer].weight.begin(), layers[layer].weight.end(),
                  draw);
    std::generate(layers[layer].bias.begin(), layers[layer].bias.end(), draw);
  }
  return layers;
}

Perceptron::Perceptron(int first, int count)
    : first_(first), count_(count), activations_(1) {
  for (int sample = first; sample < first + count; ++sample) {
    for (int64_t i = 0; i < kWidths[0]; ++i) {
      activations_[0].push_back(Input(sample, i));
    }
  }
}

void Perceptron::Forward(int layer, const Layer& parameters) {
  activations_.resize(layer + 1);
  std::vector<double> outputs;
  for (int sample = 0; sample < count_; ++sample) {
    for (int64_t o = 0; o < Outputs(layer); ++o) {
      double sum = parameters.bias[o];
      for (int64_t i = 0; i < Inputs(layer); ++i) {
        sum += parameters.weight[o * Inputs(layer) + i] *
               activations_[layer][sample * Inputs(layer) + i];
      }
      outputs.push_back(layer + 1 < kLayers ? std::tanh(sum) : sum);
    }
  }
  activations_.push_back(std::move(outputs));
}

double Perceptron::Loss() const {
  double loss = 0;
  for (int sample = 0; sample < count_; ++sample) {
    for (int64_t o = 0; o < kWidths[kLayers]; ++o) {
      const double error =
          activations_[kLayers][sample * kWidths[kLayers] + o] -
          Target(first_ + sample, o);
      loss += error * error / 2;
    }
  }
  return loss / count_;
}

Perceptron::Layer Perceptron::Backward(int layer, const Layer& parameters) {
  const int64_t inputs = Inputs(layer);
  const int64_t outputs = Outputs(layer);
  const std::vector<double>& out = activations_[layer + 1];
  if (layer + 1 == kLayers) {
    back_ = out;
    for (int sample = 0; sample < count_; ++sample) {
      for (int64_t o = 0; o < outputs; ++o) {
        double& back = back_[sample * outputs + o];
        back = (back - Target(first_ + sample, o)) / count_;
      }
    }
  } else {
    for (size_t i = 0; i < out.size(); ++i) back_[i] *= 1 - out[i] * out[i];
  }
  Layer gradients;
  gradients.weight.resize(inputs * outputs);
  gradients.bias.resize(outputs);
  std::vector<double> back(count_ * inputs);
  for (int sample = 0; sample < count_; ++sample) {
    for (int64_t o = 0; o < outputs; ++o) {
      const double error = back_[sample * outputs + o];
      gradients.bias[o] += error;
      for (int64_t i = 0; i < inputs; ++i) {
        gradients.weight[o * inputs + i] +=
            error * activations_[layer][sample * inputs + i];
        back[sample * inputs + i] += error * parameters.weight[o * inputs + i];
      }
    }
  }
  back_ = std::move(back);
  return gradients;
}

OptimizerRule ToRule(TestRule rule) {
  return rule == TestRule::kSgd ? Sgd({.momentum = 0.9, .weight_decay = 0.01})
                                : AdamW({.weight_decay = 0.1});
}

std::vector<Perceptron::Layer> TrainReference(TestRule rule, int samples,
                                              int steps, double max_norm) {
  auto layers = Perceptron::InitialLayers();
  // Two slots of every parameter.
  std::vector<std::vector<double>> first(6);
  std::vector<std::vector<double>> second(6);
  for (int step = 1; step <= steps; ++step) {
    Perceptron model(0, samples);
    for (int i = 0; i < 3; ++i) model.Forward(i, layers[i]);
    std::vector<Perceptron::Layer> gradients(3);
    for (int i = 2; i >= 0; --i) gradients[i] = model.Backward(i, layers[i]);
    double squares = 0;
    for (const auto& layer : gradients) {
      for (const double g : layer.weight) squares += g * g;
      for (const double g : layer.bias) squares += g * g;
    }
    const double scale =
        max_norm == 0 ? 1
                      : std::min(1.0, max_norm / (std::sqrt(squares) + 1e-6));
    for (int i = 0; i < 6; ++i) {
      auto& values = i % 2 == 0 ? layers[i / 2].weight : layers[i / 2].bias;
      const auto& gradient =
          i % 2 == 0 ? gradients[i / 2].weight : gradients[i / 2].bias;
      first[i].resize(values.size());
      second[i].resize(values.size());
      for (size_t j = 0; j < values.size(); ++j) {
        const double g = scale * gradient[j];
        if (rule == TestRule::kSgd) {
          first[i][j] = 0.9 * first[i][j] + g + 0.01 * values[j];
          values[j] -= kLearningRate * first[i][j];
        } else {
          first[i][j] = 0.9 * first[i][j] + 0.1 * g;
          second[i][j] = 0.999 * second[i][j] + 0.001 * g * g;
          const double mean = first[i][j] / (1 - std::pow(0.9, step));
          const double square = second[i][j] / (1 - std::pow(0.999, step));
          values[j] -= kLearningRate * 0.1 * values[j];
          values[j] -= kLearningRate * mean / (std::sqrt(square) + 1e-8);
        }
      }
    }
  }
  return layers;
}

PerceptronTensors::PerceptronTensors(DataType type) {
  const auto layers = Perceptron::InitialLayers();
  for (int layer = 0; layer < Perceptron::kLayers; ++layer) {
    const int64_t outputs = Perceptron::Outputs(layer);
    const int64_t inputs = Perceptron::Inputs(layer);
    for (const bool bias : {false, true}) {
      const auto& values = bias ? layers[layer].bias : layers[layer].weight;
      void* const place = memory_.emplace_back(values.size()).data();
      tensors_.push_back(bias ? Tensor(place, type, {outputs})
                              : Tensor(place, type, {outputs, inputs}));
      AddDoubles(tensors_.back(), values);
    }
  }
}

std::vector<ShardGroup> PerceptronTensors::Groups() const {
  std::vector<ShardGroup> groups;
  for (int layer = 0; layer < Perceptron::kLayers; ++layer) {
    const std::string number = std::to_string(layer);
    groups.push_back(
        {"layer" + number,
         {{"weight" + number, weight(layer)}, {"bias" + number, bias(layer)}}});
  }
  return groups;
}

double Difference(const std::vector<Perceptron::Layer>& reference, int layer,
                  bool bias, const Tensor& value) {
  const auto& wanted = bias ? reference[layer].bias : reference[layer].weight;
  const std::vector<double> values = ToDoubles(value);
  if (values.size() != wanted.size()) return 1e9;
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    // NaN is a difference, too.
    const double one = std::abs(values[i] - wanted[i]);
    largest = one <= largest ? largest : one;
  }
  return largest;
}

}  // namespace muster::testing
