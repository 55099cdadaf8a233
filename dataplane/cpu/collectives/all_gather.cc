#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// Bruck: blocks are numbered from this rank on, round the ring of ranks. In the
// step with distance d (1, 2, 4, ...) a rank has the first d blocks. It gives
// them to the rank d behind, for which they are numbers d and up, and gets its
// own next ones from the rank d ahead. After ceil(log2(n)) steps it has all.
// (Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all
// communications in multiport message-passing systems, 1997.)
Status GatherByNotes(const Block& own, const Blocks& all, Exchange& exchange) {
  const int rank = exchange.rank();
  const int world_size = exchange.world_size();
  const size_t element_bytes = exchange.element_bytes();
  const auto number = [&](int i) { return (rank + i) % world_size; };
  // The offset of each block in the scratch memory.
  std::vector<size_t> begin(world_size + 1, 0);
  for (int i = 0; i < world_size; ++i) {
    begin[i + 1] = begin[i] + all[number(i)].count * element_bytes;
  }
  std::byte* const scratch = exchange.Scratch(begin[world_size]);
  CopyBlock({scratch, own.count}, own, element_bytes);
  for (int distance = 1; distance < world_size; distance *= 2) {
    const int blocks = std::min(distance, world_size - distance);
    const int ahead = number(distance);
    const int behind = number(world_size - distance);
    Status sent = exchange.SendNote(behind, scratch, begin[blocks], own.count);
    if (!sent.ok()) return sent;
    StatusOr<const std::byte*> payload =
        exchange.ReceiveNote(ahead, all[ahead].count);
    if (!payload.ok()) return payload.status();
    const size_t bytes = begin[distance + blocks] - begin[distance];
    if (bytes > 0) std::memcpy(scratch + begin[distance], *payload, bytes);
  }
  for (int i = 0; i < world_size; ++i) {
    CopyBlock(all[number(i)], {scratch + begin[i], all[number(i)].count},
              element_bytes);
  }
  return OkStatus();
}

}  // namespace

Status AllGather(const Collective& collective, Exchange& exchange) {
  const int world_size = exchange.world_size();
  const Block own = ToBlock(collective.inputs[0]);
  Moves moves;
  moves.take = ToBlocks(collective.outputs, world_size);
  size_t bytes = 0;
  for (const Block& block : moves.take) {
    bytes += block.count * exchange.element_bytes();
  }
  if (bytes <= kNotePayloadBytesMax) {
    exchange.set_algorithm("bruck");
    return GatherByNotes(own, moves.take, exchange);
  }
  exchange.set_algorithm("direct");
  CopyBlock(moves.take[exchange.rank()], own, exchange.element_bytes());
  moves.give.assign(world_size, own);
  moves.WithEverybody(exchange.rank(), world_size);
  return MoveBlocks(moves, /*agreed=*/false, exchange);
}

}  // namespace muster::dataplane::cpu
