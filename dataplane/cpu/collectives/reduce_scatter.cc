#include <cstddef>
#include <vector>

#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// Between two ranks: each gives the other its part alone, which is half of what
// ReduceEverywhere sends. `theirs` and `own` are accumulators.
Status ReducePair(const Reduction& reduction, const Blocks& inputs,
                  const std::byte* theirs, std::byte* own, Exchange& exchange) {
  const int rank = exchange.rank();
  const int peer = 1 - rank;
  Status sent = exchange.SendNote(
      peer, theirs, inputs[peer].count * reduction.accumulator_bytes(),
      inputs[peer].count);
  if (!sent.ok()) return sent;
  const size_t count = inputs[rank].count;
  StatusOr<const std::byte*> other = exchange.ReceiveNote(peer, count);
  if (!other.ok()) return other.status();
  reduction.Combine(own, rank == 0 ? own : *other, rank == 0 ? *other : own,
                    count);
  reduction.Finish(own, count, exchange.world_size());
  return OkStatus();
}

// All accumulators, `count`, fit into a note. Takes the fewest steps.
Status ReduceSmall(const Reduction& reduction, double factor,
                   const Blocks& inputs, const Block& output, size_t count,
                   Exchange& exchange) {
  const int world_size = exchange.world_size();
  std::byte* next = exchange.Scratch(count * reduction.accumulator_bytes());
  std::vector<std::byte*> parts;
  for (int rank = 0; rank < world_size; ++rank) {
    parts.push_back(next);
    reduction.Load(next, inputs[rank].data, inputs[rank].count, factor);
    next += inputs[rank].count * reduction.accumulator_bytes();
  }
  std::byte* const own = parts[exchange.rank()];
  Status status;
  if (world_size == 2) {
    exchange.set_algorithm("pairwise");
    status = ReducePair(reduction, inputs, parts[1 - exchange.rank()], own,
                        exchange);
  } else {
    exchange.set_algorithm("doubling");
    status = ReduceEverywhere(reduction, parts[0], count, exchange);
  }
  if (status.ok()) reduction.Store(output.data, own, output.count);
  return status;
}

}  // namespace

Status ReduceScatter(const Collective& collective, Exchange& exchange) {
  const Reduction& reduction =
      Reduction::Of(collective.data_type(), collective.reduce_op);
  const Blocks inputs = ToBlocks(collective.inputs, exchange.world_size());
  const Block output = ToBlock(collective.outputs[0]);
  size_t count = 0;
  for (const Block& input : inputs) count += input.count;
  if (exchange.world_size() == 1 ||
      count * reduction.accumulator_bytes() <= kNotePayloadBytesMax) {
    return ReduceSmall(reduction, collective.factor, inputs, output, count,
                       exchange);
  }
  exchange.set_algorithm("pairwise");
  return ReduceAndScatter(reduction, collective.factor, inputs, output,
                          exchange);
}

}  // namespace muster::dataplane::cpu
