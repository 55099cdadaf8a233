#include <cstddef>
#include <vector>

#include "base/status.h"
#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/schedules.h"

namespace muster::dataplane::cpu {
namespace {

// Reduces everything on every rank, which keeps its part: the fewest steps.
Status ReduceAll(const Reduction& reduction, double factor,
                 const Blocks& inputs, const Block& output, size_t count,
                 Exchange& exchange) {
  std::byte* const accumulators =
      exchange.Scratch(count * reduction.accumulator_bytes());
  std::byte* next = accumulators;
  std::byte* own = accumulators;
  for (int rank = 0; rank < exchange.world_size(); ++rank) {
    if (rank == exchange.rank()) own = next;
    reduction.Load(next, inputs[rank].data, inputs[rank].count, factor);
    next += inputs[rank].count * reduction.accumulator_bytes();
  }
  Status status = ReduceEverywhere(reduction, accumulators, count, exchange);
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
    exchange.set_algorithm("doubling");
    return ReduceAll(reduction, collective.factor, inputs, output, count,
                     exchange);
  }
  exchange.set_algorithm("pairwise");
  return ReduceAndScatter(reduction, collective.factor, inputs, output,
                          exchange);
}

}  // namespace muster::dataplane::cpu
