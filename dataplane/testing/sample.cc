#include "dataplane/testing/sample.h"

#include <vector>

namespace muster::dataplane::testing {

std::vector<CollectiveKind> KindsWithTensors() {
  std::vector<CollectiveKind> kinds;
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (kind == CollectiveKind::kBarrier || IsPointToPoint(kind)) continue;
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

void Sample::AddList(Collective::Tensors& list, bool as_one, bool present) {
  if (!present) return;
  if (as_one) {
    list.push_back(Add(options_.count * options_.world_size));
    return;
  }
  for (int rank = 0; rank < options_.world_size; ++rank) {
    list.push_back(Add(options_.count));
  }
}

Sample::Sample(CollectiveKind kind, const SampleOptions& options)
    : options_(options) {
  using enum CollectiveKind;
  const bool is_root = options.rank == options.root;
  collective.kind = kind;
  collective.root = options.root;
  switch (kind) {
    case kBarrier:
      break;
    case kAllReduce:
    case kBroadcast:
    case kReduce:
      collective.tensors.push_back(Add(options.count));
      break;
    case kAllGather:
    case kAllGatherIntoTensor:
    case kGather:
      collective.inputs.push_back(Add(options.count));
      AddList(collective.outputs, kind == kAllGatherIntoTensor,
              kind != kGather || is_root);
      break;
    case kScatter:
    case kReduceScatter:
    case kReduceScatterTensor:
      AddList(collective.inputs, kind == kReduceScatterTensor,
              kind != kScatter || is_root);
      collective.outputs.push_back(Add(options.count));
      break;
    case kAllToAll:
    case kAllToAllSingle:
      AddList(collective.inputs, kind == kAllToAllSingle, true);
      AddList(collective.outputs, kind == kAllToAllSingle, true);
      break;
    case kSend:
      collective.inputs.push_back(Add(options.count));
      collective.peer = (options.rank + 1) % options.world_size;
      break;
    case kRecv:
      collective.outputs.push_back(Add(options.count));
      collective.peer =
          (options.rank - 1 + options.world_size) % options.world_size;
      break;
  }
}

}  // namespace muster::dataplane::testing
