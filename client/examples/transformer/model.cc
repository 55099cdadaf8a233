#include "client/examples/transformer/model.h"

#include <cstdint>
#include <string>

#include "client/examples/transformer/attention.h"
#include "client/examples/transformer/embedding.h"
#include "client/examples/transformer/head.h"
#include "client/examples/transformer/mlp.h"

namespace muster::examples {
namespace {

template <typename T>
std::vector<std::unique_ptr<Layer>> Make(const ModelSettings& settings,
                                         const TensorParallelOptions& tp,
                                         int stage, int stages) {
  std::vector<std::unique_ptr<Layer>> layers;
  if (stage == 0)
    layers.push_back(std::make_unique<Embedding<T>>(settings, tp));
  const int64_t first = settings.blocks * stage / stages;
  const int64_t end = settings.blocks * (stage + 1) / stages;
  for (int64_t block = first; block < end; ++block) {
    const std::string name = "blocks." + std::to_string(block);
    layers.push_back(
        std::make_unique<Attention<T>>(name + ".attention", settings, tp));
    layers.push_back(std::make_unique<Mlp<T>>(name + ".mlp", settings, tp));
  }
  if (stage + 1 == stages) {
    layers.push_back(std::make_unique<Head<T>>(settings, tp));
  }
  return layers;
}

}  // namespace

std::vector<std::unique_ptr<Layer>> MakeLayers(
    const ModelSettings& settings, const TensorParallelOptions& tensor_parallel,
    int stage, int stages) {
  return settings.data_type == DataType::kFloat64
             ? Make<double>(settings, tensor_parallel, stage, stages)
             : Make<float>(settings, tensor_parallel, stage, stages);
}

}  // namespace muster::examples
