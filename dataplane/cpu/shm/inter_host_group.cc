#include "dataplane/cpu/shm/inter_host_group.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/reduction.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

using cpu::Exchange;
using cpu::ToTensor;
using cpu::ToTensors;

// Up to so many hosts send each other all of a small tensor at once. That takes
// one delay between hosts; recursive doubling takes one per step.
constexpr int kAtOnceHostsMax = 8;

}  // namespace

InterHostGroup::InterHostGroup(cpu::Transport& transport,
                               std::vector<int> ranks)
    : transport_(transport, std::move(ranks)), workspace_(transport_) {}

// All sizes up to fusable_bytes() take one path, so that elements are combined
// in one order (see Backend).
bool InterHostGroup::IsAtOnce(size_t bytes) const {
  return transport_.world_size() <= kAtOnceHostsMax &&
         bytes <= cpu::kNotePayloadBytesMax;
}

Status InterHostGroup::CombineAtOnce(const Sum& sum, const Blocks& give,
                                     Exchange& exchange) {
  const Reduction& reduction = Reduction::Of(sum.type, sum.op);
  const Block own = give[transport_.rank()];
  const size_t bytes = own.count * exchange.element_bytes();
  cpu::Moves moves;
  moves.WithEverybody(transport_.rank(), transport_.world_size());
  moves.give = give;
  std::byte* const result =
      exchange.Scratch((transport_.world_size() + 1) * bytes);
  for (int host = 0; host < transport_.world_size(); ++host) {
    moves.take.push_back({result + (host + 1) * bytes, own.count});
  }
  Status status = cpu::MoveBlocks(moves, /*agreed=*/false, exchange);
  if (!status.ok() || own.count == 0) return status;
  moves.take[transport_.rank()] = own;
  reduction.Combine(result, moves.take[0].data, moves.take[1].data, own.count);
  for (int host = 2; host < transport_.world_size(); ++host) {
    reduction.Combine(result, result, moves.take[host].data, own.count);
  }
  std::memcpy(own.data, result, bytes);
  return status;
}

Status InterHostGroup::AllReduce(const MessageHeader& header, const Sum& sum,
                                 const Block& accumulators) {
  const Collective step = {.kind = CollectiveKind::kAllReduce,
                           .tensors = {ToTensor(accumulators, sum.type)},
                           .reduce_op = sum.op};
  Exchange exchange(workspace_, step, header);
  if (!IsAtOnce(step.bytes())) return cpu::AllReduce(step, exchange);
  return CombineAtOnce(sum, Blocks(transport_.world_size(), accumulators),
                       exchange);
}

Status InterHostGroup::Reduce(const MessageHeader& header, const Sum& sum,
                              const Block& accumulators, int root) {
  const Collective step = {.kind = CollectiveKind::kReduce,
                           .tensors = {ToTensor(accumulators, sum.type)},
                           .reduce_op = sum.op,
                           .root = root};
  Exchange exchange(workspace_, step, header);
  return cpu::Reduce(step, exchange);
}

Status InterHostGroup::ReduceScatter(const MessageHeader& header,
                                     const Sum& sum, const Blocks& blocks) {
  const Collective step = {
      .kind = CollectiveKind::kReduceScatter,
      .inputs = ToTensors(blocks, sum.type),
      .outputs = {ToTensor(blocks[transport_.rank()], sum.type)},
      .reduce_op = sum.op};
  Exchange exchange(workspace_, step, header);
  return IsAtOnce(step.bytes()) ? CombineAtOnce(sum, blocks, exchange)
                                : cpu::ReduceScatter(step, exchange);
}

Status InterHostGroup::AllGather(const MessageHeader& header, DataType type,
                                 const Blocks& blocks) {
  const Collective step = {
      .kind = CollectiveKind::kAllGather,
      .inputs = {ToTensor(blocks[transport_.rank()], type)},
      .outputs = ToTensors(blocks, type)};
  Exchange exchange(workspace_, step, header);
  return cpu::AllGather(step, exchange);
}

Status InterHostGroup::Broadcast(const MessageHeader& header, DataType type,
                                 const Block& block, int root) {
  const Collective step = {.kind = CollectiveKind::kBroadcast,
                           .tensors = {ToTensor(block, type)},
                           .root = root};
  Exchange exchange(workspace_, step, header);
  return cpu::Broadcast(step, exchange);
}

Status InterHostGroup::Barrier(const MessageHeader& header) {
  const Collective step = {.kind = CollectiveKind::kBarrier};
  Exchange exchange(workspace_, step, header);
  return cpu::Barrier(step, exchange);
}

}  // namespace muster::dataplane::shm
