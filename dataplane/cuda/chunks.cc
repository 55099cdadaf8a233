#include "dataplane/cuda/chunks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::dataplane::cuda {
namespace {

using Tensors = Collective::Tensors;

// Elements [begin, end) of it, as far as it has them.
Tensor Slice(const Tensor& tensor, int64_t begin, int64_t end) {
  begin = std::min(begin, tensor.element_count());
  end = std::min(end, tensor.element_count());
  char* const data = static_cast<char*>(tensor.data());
  return Tensor(
      data + static_cast<size_t>(begin) * DataTypeBytes(tensor.data_type()),
      tensor.data_type(), {end - begin}, tensor.device());
}

// A tensor for each part of `list`, as PartCounts cuts it.
Tensors PartsOf(const Tensors& list, const std::vector<int64_t>& splits,
                int world_size) {
  Tensors parts;
  int64_t begin = 0;
  for (const int64_t count : PartCounts(list, splits, world_size)) {
    parts.push_back(Slice(list[0], begin, begin + count));
    begin += count;
  }
  return parts;
}

int64_t ChunksFor(int64_t size, int64_t chunk_size) {
  return std::max<int64_t>((size + chunk_size - 1) / chunk_size, 1);
}

}  // namespace

Tensors Rows(const Tensor& tensor, int count) {
  return PartsOf({tensor}, {}, count);
}

Collective CutAlike(const Collective& collective, int world_size) {
  const CollectiveTraits& traits = TraitsOf(collective.kind);
  Collective cut = collective;
  cut.plan = nullptr;
  cut.kind = traits.list_form;
  if (traits.inputs == TensorList::kWhole) {
    cut.inputs =
        PartsOf(collective.inputs, collective.input_splits, world_size);
  }
  if (traits.outputs == TensorList::kWhole) {
    cut.outputs =
        PartsOf(collective.outputs, collective.output_splits, world_size);
  }
  cut.input_splits.clear();
  cut.output_splits.clear();
  return cut;
}

Tensor Cut::PartOf(const Tensor& tensor, int64_t chunk) const {
  if (elements > 0) {
    return Slice(tensor, chunk * elements, (chunk + 1) * elements);
  }
  const int64_t each = tensor.element_count() / chunks;
  const int64_t rest = tensor.element_count() % chunks;
  const auto begin = [&](int64_t number) {
    return number * each + std::min(number, rest);
  };
  return Slice(tensor, begin(chunk), begin(chunk + 1));
}

Cut CutOf(const Collective& alike, int world_size, size_t chunk_bytes) {
  int64_t longest = 0;
  size_t bytes = 0;
  for (const Tensors* list : alike.lists()) {
    for (const Tensor& tensor : *list) {
      longest = std::max(longest, tensor.element_count());
      bytes += tensor.bytes();
    }
  }
  if (IsAllToAll(alike.kind)) {
    return {.chunks = ChunksFor(static_cast<int64_t>(bytes),
                                static_cast<int64_t>(chunk_bytes)),
            .elements = 0};
  }
  const size_t tensors =
      alike.tensors.empty() ? static_cast<size_t>(world_size) + 1 : 1;
  const auto elements = static_cast<int64_t>(std::max<size_t>(
      chunk_bytes / (DataTypeBytes(alike.data_type()) * tensors), 1));
  return {.chunks = ChunksFor(longest, elements), .elements = elements};
}

}  // namespace muster::dataplane::cuda
