#include "client/examples/transformer/weights.h"

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "muster/data_parallel.h"
#include "muster/dtensor.h"
#include "muster/fully_shard.h"

namespace muster::examples {
namespace {

// The parameters of each layer, as the tensor parallel ranks share them.
using LayerTensors = std::vector<std::vector<DTensor>>;

// Another number for each name: FNV-1a.
uint64_t MixIn(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325 ^ seed;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

LayerTensors MakeTensors(const std::vector<std::unique_ptr<Layer>>& layers,
                         DataType data_type, const DeviceMesh& mesh) {
  LayerTensors tensors;
  for (const auto& layer : layers) {
    std::vector<DTensor>& each = tensors.emplace_back();
    for (const ParameterSpec& spec : layer->parameters()) {
      each.push_back(
          DTensor::Zeros(spec.shape, data_type, mesh["tp"], {spec.placement}));
    }
  }
  return tensors;
}

LayerTensors MakeFirstValues(const std::vector<std::unique_ptr<Layer>>& layers,
                             DataType data_type, uint64_t seed,
                             const DeviceMesh& mesh) {
  LayerTensors values = MakeTensors(layers, data_type, mesh);
  for (size_t i = 0; i < layers.size(); ++i) {
    for (size_t k = 0; k < values[i].size(); ++k) {
      const ParameterSpec& spec = layers[i]->parameters()[k];
      values[i][k].FillNormal(MixIn(seed, spec.name), spec.mean,
                              spec.deviation);
    }
  }
  return values;
}

std::vector<Tensor> ToLocal(const std::vector<DTensor>& tensors) {
  std::vector<Tensor> result;
  for (const DTensor& tensor : tensors) result.push_back(tensor.ToLocal());
  return result;
}

// Each data parallel rank has all of them. Null: there are no replicas.
class WholeWeights : public Weights {
 public:
  WholeWeights(const std::vector<std::unique_ptr<Layer>>& layers,
               LayerTensors values, LayerTensors gradients,
               std::shared_ptr<ProcessGroup> replicas)
      : values_(std::move(values)), gradients_(std::move(gradients)) {
    std::vector<Parameter> parameters;
    for (size_t i = 0; i < layers.size(); ++i) {
      first_.push_back(tensors_.size());
      for (size_t k = 0; k < values_[i].size(); ++k) {
        const std::string& name = layers[i]->parameters()[k].name;
        const DTensor& value = values_[i][k];
        tensors_.push_back({name, value.ToLocal(), gradients_[i][k].ToLocal()});
        boxes_.push_back(
            {name, value.shape(), value.box().offsets, value.ToLocal()});
        parameters.push_back(
            {name, tensors_.back().value, tensors_.back().gradient});
      }
    }
    if (replicas == nullptr) return;
    data_parallel_.emplace(parameters,
                           DataParallelOptions{.group = std::move(replicas)});
  }

  std::vector<Tensor> Values(int layer) override {
    return ToLocal(values_[static_cast<size_t>(layer)]);
  }
  std::vector<Tensor> Gradients(int layer) override {
    return ToLocal(gradients_[static_cast<size_t>(layer)]);
  }
  void Release(int /*layer*/) override {}
  void GradientsReady(int layer) override {
    if (!data_parallel_.has_value()) return;
    const auto index = static_cast<size_t>(layer);
    for (size_t k = 0; k < values_[index].size(); ++k) {
      data_parallel_->Ready(first_[index] + k);
    }
  }
  void FinishStep() override {
    if (data_parallel_.has_value()) data_parallel_->FinishStep();
  }
  void ZeroGradients() override {
    for (const OptimizedTensor& tensor : tensors_) {
      std::memset(tensor.gradient.data(), 0, tensor.gradient.bytes());
    }
  }
  const std::vector<OptimizedTensor>& tensors() const override {
    return tensors_;
  }
  const std::vector<CheckpointShard>& boxes() const override { return boxes_; }

 private:
  const LayerTensors values_;
  const LayerTensors gradients_;
  // The index in `tensors_` of each layer's first parameter.
  std::vector<size_t> first_;
  std::vector<OptimizedTensor> tensors_;
  std::vector<CheckpointShard> boxes_;
  std::optional<DataParallel> data_parallel_;
};

// The data parallel ranks share them.
class ShardedWeights : public Weights {
 public:
  // Reads `values`.
  ShardedWeights(const std::vector<std::unique_ptr<Layer>>& layers,
                 const LayerTensors& values, const DeviceMesh& mesh,
                 const std::shared_ptr<ProcessGroup>& replicas)
      : sizes_(layers.size()),
        model_(MakeGroups(layers, values),
               {.group = mesh.GetGroup("fsdp"), .replicate_group = replicas}),
        tensors_(model_.Tensors()) {
    size_t index = 0;
    const std::vector<ParameterShard> shards = model_.Shards();
    for (size_t i = 0; i < layers.size(); ++i) {
      sizes_[i] = values[i].size();
      for (const DTensor& value : values[i]) {
        const ParameterShard& shard = shards[index++];
        // A shard of the tensor parallel rank's part of the whole.
        std::vector<int64_t> offsets = value.box().offsets;
        for (size_t dim = 0; dim < offsets.size(); ++dim) {
          offsets[dim] += shard.offsets[dim];
        }
        boxes_.push_back({shard.name, value.shape(), offsets, shard.value});
      }
    }
  }

  std::vector<Tensor> Values(int layer) override {
    model_.WaitUnshard(layer);
    return Collect(layer, [&](int k) { return model_.Value(layer, k); });
  }
  std::vector<Tensor> Gradients(int layer) override {
    return Collect(layer, [&](int k) { return model_.Gradient(layer, k); });
  }
  void Release(int layer) override { model_.Reshard(layer); }
  void GradientsReady(int layer) override { model_.GradientsReady(layer); }
  void FinishStep() override { model_.FinishStep(); }
  void ZeroGradients() override { model_.ZeroGradients(); }
  const std::vector<OptimizedTensor>& tensors() const override {
    return tensors_;
  }
  const std::vector<CheckpointShard>& boxes() const override { return boxes_; }

 private:
  static std::vector<ShardGroup> MakeGroups(
      const std::vector<std::unique_ptr<Layer>>& layers,
      const LayerTensors& values) {
    std::vector<ShardGroup> groups;
    for (size_t i = 0; i < layers.size(); ++i) {
      ShardGroup& group = groups.emplace_back();
      group.name = layers[i]->parameters().front().name;
      for (size_t k = 0; k < values[i].size(); ++k) {
        group.parameters.push_back(
            {layers[i]->parameters()[k].name, values[i][k].ToLocal()});
      }
    }
    return groups;
  }

  template <typename Function>
  std::vector<Tensor> Collect(int layer, Function get) {
    std::vector<Tensor> result;
    for (size_t k = 0; k < sizes_[static_cast<size_t>(layer)]; ++k) {
      result.push_back(get(static_cast<int>(k)));
    }
    return result;
  }

  // How many parameters each layer has.
  std::vector<size_t> sizes_;
  FullyShard model_;
  std::vector<OptimizedTensor> tensors_;
  std::vector<CheckpointShard> boxes_;
};

}  // namespace

std::unique_ptr<Weights> MakeWeights(
    const std::vector<std::unique_ptr<Layer>>& layers, DataType data_type,
    uint64_t seed, const Layout& layout, const DeviceMesh& mesh) {
  LayerTensors values = MakeFirstValues(layers, data_type, seed, mesh);
  const auto replicas = layout.size("ddp") > 1 ? mesh.GetGroup("ddp") : nullptr;
  if (layout.size("fsdp") > 1) {
    return std::make_unique<ShardedWeights>(layers, values, mesh, replicas);
  }
  return std::make_unique<WholeWeights>(layers, std::move(values),
                                        MakeTensors(layers, data_type, mesh),
                                        replicas);
}

}  // namespace muster::examples
