#include "dataplane/cuda/chunks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dataplane/blocks.h"

namespace muster::dataplane::cuda {
namespace {

using Tensors = Collective::Tensors;

Tensor Slice(const Tensor& tensor, Range range) {
  auto* const data = static_cast<std::byte*>(tensor.data());
  return Tensor(data + range.first * DataTypeBytes(tensor.data_type()),
                tensor.data_type(), {static_cast<int64_t>(range.count)},
                tensor.device());
}

// The parts of `list`, as PartCounts counts them.
Tensors CutParts(const Tensors& list, const std::vector<int64_t>& splits,
                 int world_size) {
  Tensors parts;
  Range part;
  for (const int64_t count : PartCounts(list, splits, world_size)) {
    part = {part.first + part.count, static_cast<size_t>(count)};
    parts.push_back(Slice(list[0], part));
  }
  return parts;
}

}  // namespace

Tensors Rows(const Tensor& tensor, int count) {
  return CutParts({tensor}, {}, count);
}

Collective CutAlike(const Collective& collective, int world_size) {
  const CollectiveTraits& traits = GetTraits(collective.kind);
  Collective cut = collective;
  cut.kind = traits.list_form;
  if (traits.inputs == TensorList::kWhole) {
    cut.inputs =
        CutParts(collective.inputs, collective.input_splits, world_size);
  }
  if (traits.outputs == TensorList::kWhole) {
    cut.outputs =
        CutParts(collective.outputs, collective.output_splits, world_size);
  }
  cut.input_splits.clear();
  cut.output_splits.clear();
  return cut;
}

Tensor Cut::GetPart(const Tensor& tensor, size_t chunk) const {
  const auto count = static_cast<size_t>(tensor.element_count());
  if (elements > 0) return Slice(tensor, CutChunk(count, chunk, elements));
  // Not as dataplane::CutPart: the first ones are the longer ones.
  const size_t each = count / chunks;
  const size_t rest = count % chunks;
  return Slice(tensor, {chunk * each + std::min(chunk, rest),
                        each + (chunk < rest ? 1 : 0)});
}

Cut MakeCut(const Collective& alike, int world_size, size_t chunk_bytes) {
  size_t longest = 0;
  size_t bytes = 0;
  for (const Tensors* list : alike.lists()) {
    for (const Tensor& tensor : *list) {
      longest = std::max<size_t>(longest, tensor.element_count());
      bytes += tensor.bytes();
    }
  }
  if (IsAllToAll(alike.kind)) {
    return {.chunks = ChunksFor(bytes, chunk_bytes), .elements = 0};
  }
  const size_t tensors =
      alike.tensors.empty() ? static_cast<size_t>(world_size) + 1 : 1;
  size_t elements = std::max<size_t>(
      chunk_bytes / (DataTypeBytes(alike.data_type()) * tensors), 1);
  if (const size_t whole = alike.opaque_bytes; whole > 0) {
    elements = std::max(elements - elements % whole, whole);
  }
  return {.chunks = ChunksFor(longest, elements), .elements = elements};
}

}  // namespace muster::dataplane::cuda
