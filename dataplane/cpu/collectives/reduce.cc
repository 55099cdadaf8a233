#include <cstddef>
#include <memory>
#include <vector>

#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// A binomial tree, upward: every rank combines its data with its children's and
// gives the result to its parent.
Status ReduceByNotes(const Collective& collective, const Reduction& reduction,
                     Exchange& exchange) {
  const int rank = exchange.rank();
  const Block own = ToBlock(collective.tensors[0]);
  const size_t bytes = own.count * reduction.accumulator_bytes();
  // Ranks other than the root keep their tensors unchanged.
  const bool is_root = rank == collective.root;
  std::byte* const accumulators =
      is_root && reduction.in_place() ? own.data : exchange.Scratch(bytes);
  reduction.Load(accumulators, own.data, own.count, collective.factor);
  const Links links =
      BinomialTree(rank, collective.root, exchange.world_size());
  // The smallest subtree is ready first.
  for (auto child = links.children.rbegin(); child != links.children.rend();
       ++child) {
    StatusOr<const std::byte*> payload = exchange.ReceiveNote(*child);
    if (!payload.ok()) return payload.status();
    reduction.Combine(accumulators, accumulators, *payload, own.count);
  }
  if (!is_root) return exchange.SendNote(links.parent, accumulators, bytes);
  reduction.Finish(accumulators, own.count, exchange.world_size());
  reduction.Store(own.data, accumulators, own.count);
  return OkStatus();
}

// Reduce-scatter, then every rank gives its part to the root.
// (Rabenseifner: Optimization of collective reduction operations, 2004.)
Status ReduceByParts(const Collective& collective, const Reduction& reduction,
                     Exchange& exchange) {
  const int rank = exchange.rank();
  const int world_size = exchange.world_size();
  const int root = collective.root;
  const size_t element_bytes = exchange.element_bytes();
  const Blocks parts =
      CutParts(ToBlock(collective.tensors[0]), world_size, element_bytes);
  Block result = parts[rank];
  std::unique_ptr<std::byte[]> memory;
  if (rank != root) {
    memory = std::make_unique_for_overwrite<std::byte[]>(result.count *
                                                         element_bytes);
    result.data = memory.get();
  }
  Status status =
      ReduceAndScatter(reduction, collective.factor, parts, result, exchange);
  if (!status.ok()) return status;
  Moves moves;
  if (rank == root) {
    // Each rank has received this rank's part before it has a result to give.
    moves.WithEverybody(rank, world_size);
    moves.receivers.clear();
    moves.take = parts;
  } else {
    moves.give.assign(world_size, result);
    moves.receivers = {root};
  }
  return MoveBlocks(moves, /*agreed=*/true, exchange);
}

}  // namespace

Status Reduce(const Collective& collective, Exchange& exchange) {
  const Tensor& tensor = collective.tensors[0];
  const Reduction& reduction =
      Reduction::Of(tensor.data_type(), collective.reduce_op);
  const size_t bytes = tensor.element_count() * reduction.accumulator_bytes();
  if (exchange.world_size() == 1 || bytes <= kNotePayloadBytesMax) {
    exchange.set_algorithm("tree");
    return ReduceByNotes(collective, reduction, exchange);
  }
  exchange.set_algorithm("pairwise");
  return ReduceByParts(collective, reduction, exchange);
}

}  // namespace muster::dataplane::cpu
