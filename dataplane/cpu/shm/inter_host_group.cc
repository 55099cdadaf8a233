#include "dataplane/cpu/shm/inter_host_group.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/reduction.h"

namespace muster::dataplane::shm_internal {
namespace {

using gloo_internal::Exchange;

// Up to so many hosts give each other all of a small tensor at once: that takes
// one delay between hosts, and recursive doubling as many as it has steps.
constexpr int kAtOnceHostsMax = 8;

Tensor TensorOf(const Block& block, DataType type) {
  return Tensor(block.data, type, {static_cast<int64_t>(block.count)});
}

Collective::Tensors TensorsOf(const Blocks& blocks, DataType type) {
  Collective::Tensors tensors;
  for (const Block& block : blocks) tensors.push_back(TensorOf(block, type));
  return tensors;
}

}  // namespace

Lane::Lane(gloo_internal::Mesh& mesh, std::vector<int> ranks)
    : mesh_(mesh, std::move(ranks)), workspace_(mesh_) {}

// Of sizes up to fusable_bytes() all go one way, so that elements are combined
// in one order (see Backend).
bool Lane::IsAtOnce(size_t bytes) const {
  return mesh_.world_size() <= kAtOnceHostsMax &&
         bytes <= gloo_internal::kNotePayloadBytesMax;
}

absl::Status Lane::CombineAtOnce(const Sum& sum, const Blocks& give,
                                 Exchange& exchange) {
  const Reduction& reduction = Reduction::Of(sum.type, sum.op);
  const Block own = give[mesh_.rank()];
  const size_t bytes = own.count * exchange.element_bytes();
  gloo_internal::Moves moves;
  moves.WithEverybody(mesh_.rank(), mesh_.world_size());
  moves.give = give;
  std::byte* const result = exchange.Scratch((mesh_.world_size() + 1) * bytes);
  for (int host = 0; host < mesh_.world_size(); ++host) {
    moves.take.push_back({result + (host + 1) * bytes, own.count});
  }
  absl::Status status =
      gloo_internal::MoveBlocks(moves, /*agreed=*/false, exchange);
  if (!status.ok() || own.count == 0) return status;
  moves.take[mesh_.rank()] = own;
  reduction.Combine(result, moves.take[0].data, moves.take[1].data, own.count);
  for (int host = 2; host < mesh_.world_size(); ++host) {
    reduction.Combine(result, result, moves.take[host].data, own.count);
  }
  std::memcpy(own.data, result, bytes);
  return status;
}

absl::Status Lane::AllReduce(const NoteHeader& header, const Sum& sum,
                             const Block& accumulators) {
  const Collective step = {.kind = CollectiveKind::kAllReduce,
                           .tensors = {TensorOf(accumulators, sum.type)},
                           .reduce_op = sum.op};
  Exchange exchange(workspace_, step, header);
  if (!IsAtOnce(step.bytes())) return gloo_internal::AllReduce(step, exchange);
  return CombineAtOnce(sum, Blocks(mesh_.world_size(), accumulators), exchange);
}

absl::Status Lane::Reduce(const NoteHeader& header, const Sum& sum,
                          const Block& accumulators, int root) {
  const Collective step = {.kind = CollectiveKind::kReduce,
                           .tensors = {TensorOf(accumulators, sum.type)},
                           .reduce_op = sum.op,
                           .root = root};
  Exchange exchange(workspace_, step, header);
  return gloo_internal::Reduce(step, exchange);
}

absl::Status Lane::ReduceScatter(const NoteHeader& header, const Sum& sum,
                                 const Blocks& blocks) {
  const Collective step = {
      .kind = CollectiveKind::kReduceScatter,
      .inputs = TensorsOf(blocks, sum.type),
      .outputs = {TensorOf(blocks[mesh_.rank()], sum.type)},
      .reduce_op = sum.op};
  Exchange exchange(workspace_, step, header);
  return IsAtOnce(step.bytes()) ? CombineAtOnce(sum, blocks, exchange)
                                : gloo_internal::ReduceScatter(step, exchange);
}

absl::Status Lane::AllGather(const NoteHeader& header, DataType type,
                             const Blocks& blocks) {
  const Collective step = {.kind = CollectiveKind::kAllGather,
                           .inputs = {TensorOf(blocks[mesh_.rank()], type)},
                           .outputs = TensorsOf(blocks, type)};
  Exchange exchange(workspace_, step, header);
  return gloo_internal::AllGather(step, exchange);
}

absl::Status Lane::Broadcast(const NoteHeader& header, DataType type,
                             const Block& block, int root) {
  const Collective step = {.kind = CollectiveKind::kBroadcast,
                           .tensors = {TensorOf(block, type)},
                           .root = root};
  Exchange exchange(workspace_, step, header);
  return gloo_internal::Broadcast(step, exchange);
}

absl::Status Lane::Barrier(const NoteHeader& header) {
  const Collective step = {.kind = CollectiveKind::kBarrier};
  Exchange exchange(workspace_, step, header);
  return gloo_internal::Barrier(step, exchange);
}

}  // namespace muster::dataplane::shm_internal
