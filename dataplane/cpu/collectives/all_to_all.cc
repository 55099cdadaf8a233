#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/schedules.h"

namespace muster::dataplane::cpu {
Blocks CutBlocks(const Tensor& tensor, const std::vector<int64_t>& splits,
                 int world_size) {
  const size_t element_bytes = DataTypeBytes(tensor.data_type());
  if (splits.empty()) {
    return PartsOf(BlockOf(tensor), world_size, element_bytes);
  }
  const int64_t rows = tensor.shape()[0];
  const size_t row_count = rows == 0 ? 0 : tensor.element_count() / rows;
  auto* next = static_cast<std::byte*>(tensor.data());
  Blocks blocks;
  blocks.reserve(splits.size());
  for (const int64_t split : splits) {
    blocks.push_back({next, split * row_count});
    next += blocks.back().count * element_bytes;
  }
  return blocks;
}

// Everybody gives everybody his block at once. With steps in between (Bruck)
// there would be fewer messages, but all sizes would have to be equal.
Status AllToAll(const Collective& collective, Exchange& exchange) {
  exchange.set_algorithm("direct");
  const int rank = exchange.rank();
  const int world_size = exchange.world_size();
  Moves moves;
  if (HasSplits(collective.kind)) {
    moves.give =
        CutBlocks(collective.inputs[0], collective.input_splits, world_size);
    moves.take =
        CutBlocks(collective.outputs[0], collective.output_splits, world_size);
  } else {
    moves.give = BlocksOf(collective.inputs, world_size);
    moves.take = BlocksOf(collective.outputs, world_size);
  }
  CopyBlock(moves.take[rank], moves.give[rank], exchange.element_bytes());
  moves.WithEverybody(rank, world_size);
  return MoveBlocks(moves, /*agreed=*/false, exchange);
}

}  // namespace muster::dataplane::cpu
