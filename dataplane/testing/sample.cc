#include "dataplane/testing/sample.h"

#include <vector>

namespace muster::dataplane::testing {

std::vector<CollectiveKind> KindsWithTensors() {
  std::vector<CollectiveKind> kinds;
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (!HasTensors(kind) || IsPointToPoint(kind)) continue;
    kinds.push_back(kind);
  }
  return kinds;
}

Tensor Sample::Add(size_t count) {
  const size_t bytes = count * DataTypeBytes(options_.data_type);
  auto& memory = memory_.emplace_back(bytes / sizeof(memory_[0][0]) + 1);
  return Tensor(memory.data(), options_.data_type,
                {static_cast<int64_t>(count)});
}

void Sample::AddList(Collective::Tensors& list, TensorList layout) {
  const auto ranks = static_cast<size_t>(options_.world_size);
  switch (layout) {
    case TensorList::kEmpty:
      return;
    case TensorList::kOne:
      list.push_back(Add(options_.count));
      return;
    case TensorList::kWhole:
      list.push_back(Add(options_.count * ranks));
      return;
    case TensorList::kPerRankOnRoot:
      if (options_.rank != options_.root) return;
      [[fallthrough]];
    case TensorList::kPerRank:
      for (size_t i = 0; i < ranks; ++i) list.push_back(Add(options_.count));
  }
}

Sample::Sample(CollectiveKind kind, const SampleOptions& options)
    : options_(options) {
  const CollectiveTraits& traits = GetTraits(kind);
  collective.kind = kind;
  collective.root = options.root;
  AddList(collective.tensors, traits.tensors);
  AddList(collective.inputs, traits.inputs);
  AddList(collective.outputs, traits.outputs);
  if (!traits.is_point_to_point) return;
  const int step = traits.inputs == TensorList::kOne ? 1 : -1;
  collective.peer =
      (options.rank + step + options.world_size) % options.world_size;
}

}  // namespace muster::dataplane::testing
