
#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// Gather and Scatter move data directly at every size: all of it passes the
// root's connections in any case, and a tree would only add waits.

Status Gather(const Collective& collective, Exchange& exchange) {
  exchange.set_algorithm("direct");
  const int rank = exchange.rank();
  const int world_size = exchange.world_size();
  const Block own = ToBlock(collective.inputs[0]);
  Moves moves;
  if (rank != collective.root) {
    moves.give.assign(world_size, own);
    moves.receivers = {collective.root};
    return MoveBlocks(moves, /*agreed=*/false, exchange);
  }
  moves.WithEverybody(rank, world_size);
  moves.receivers.clear();
  moves.take = ToBlocks(collective.outputs, world_size);
  CopyBlock(moves.take[rank], own, exchange.element_bytes());
  return MoveBlocks(moves, /*agreed=*/false, exchange);
}

Status Scatter(const Collective& collective, Exchange& exchange) {
  exchange.set_algorithm("direct");
  const int rank = exchange.rank();
  const int world_size = exchange.world_size();
  const Block own = ToBlock(collective.outputs[0]);
  Moves moves;
  if (rank != collective.root) {
    moves.take.assign(world_size, own);
    moves.senders = {collective.root};
    return MoveBlocks(moves, /*agreed=*/false, exchange);
  }
  moves.WithEverybody(rank, world_size);
  moves.senders.clear();
  moves.give = ToBlocks(collective.inputs, world_size);
  CopyBlock(own, moves.give[rank], exchange.element_bytes());
  return MoveBlocks(moves, /*agreed=*/false, exchange);
}

}  // namespace muster::dataplane::cpu
