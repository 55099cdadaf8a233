#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// Every rank gives each rank its block directly. Bruck's algorithm would need
// fewer messages, but equal sizes.
Status AllToAll(const Collective& collective, Exchange& exchange) {
  exchange.set_algorithm("direct");
  const int rank = exchange.rank();
  const int world_size = exchange.world_size();
  Moves moves;
  moves.give = ToBlocks(collective.inputs, collective.input_splits, world_size);
  moves.take =
      ToBlocks(collective.outputs, collective.output_splits, world_size);
  CopyBlock(moves.take[rank], moves.give[rank], exchange.element_bytes());
  moves.WithEverybody(rank, world_size);
  return MoveBlocks(moves, /*agreed=*/false, exchange);
}

}  // namespace muster::dataplane::cpu
