#include "dataplane/backends/shm/inside.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/status/status.h"

namespace muster::dataplane::shm_internal {
namespace {

// Calls `function` with every piece of a block in elements [first, first +
// count) of `strand`, and how many there are in that before it.
template <typename Function>
void ForPieces(const Strand& strand, size_t first, size_t count,
               size_t element_bytes, Function&& function) {
  size_t done = 0;
  for (const Block& block : strand) {
    if (done == count) return;
    if (first >= block.count) {
      first -= block.count;
      continue;
    }
    const size_t pieces = std::min(block.count - first, count - done);
    std::byte* const data =
        block.data == nullptr ? nullptr : block.data + first * element_bytes;
    function(Block{data, pieces}, done);
    done += pieces;
    first = 0;
  }
}

// How many of `count` go in round `round`.
size_t CountIn(size_t count, size_t round, size_t per_round) {
  return std::min(per_round, count - std::min(count, round * per_round));
}

}  // namespace

size_t CountOf(const Strand& strand) {
  size_t count = 0;
  for (const Block& block : strand) count += block.count;
  return count;
}

NoteHeader HeaderOf(const Collective& collective) {
  NoteHeader header = NoteHeader::Of(collective);
  // Of others whose sizes a rank may have to itself it has a hash.
  if (collective.kind == CollectiveKind::kAllGatherIntoTensor) {
    header.element_count = collective.inputs[0].element_count();
  }
  return header;
}

Inside::Inside(Workshop& shop, const Collective& collective)
    : Rounds(shop, collective) {
  set_element_count(HeaderOf(collective).element_count);
}

std::vector<size_t> Inside::CountsOf(const std::vector<Strand>& strands) {
  std::vector<size_t> counts;
  counts.reserve(strands.size());
  for (const Strand& strand : strands) counts.push_back(CountOf(strand));
  return counts;
}

// One at least, for who looks what the others run.
size_t Inside::RoundsFor(const std::vector<size_t>& counts, size_t per_round) {
  const size_t most = *std::max_element(counts.begin(), counts.end());
  return std::max<size_t>(1, (most + per_round - 1) / per_round);
}

absl::Status Inside::Meet() {
  if (world_size_ == 1) return absl::OkStatus();
  absl::Status status = Open();
  if (!status.ok()) return status;
  Post();
  return AwaitAll();
}

absl::Status Inside::Combine(const Reduction& reduction,
                             const std::vector<Strand>& strands,
                             std::byte* accumulators) {
  const size_t bytes = reduction.accumulator_bytes();
  const std::vector<size_t> counts = CountsOf(strands);
  const auto load = [&](const Strand& strand, size_t first, size_t count,
                        std::byte* to) {
    ForPieces(strand, first, count, element_bytes_,
              [&](const Block& piece, size_t done) {
                reduction.Load(to + done * bytes, piece.data, piece.count,
                               collective().factor);
              });
  };
  if (world_size_ == 1) {
    load(strands[0], 0, counts[0], accumulators);
    return absl::OkStatus();
  }
  const auto idle = std::count(counts.begin(), counts.end(), size_t{0});
  const auto busy = std::max<size_t>(1, counts.size() - idle);
  const size_t per_round = kPayloadBytes / busy / bytes;
  const size_t rounds = RoundsFor(counts, per_round);
  for (size_t round = 0; round < rounds; ++round) {
    absl::Status status = Open();
    if (!status.ok()) return status;
    size_t offset = 0;
    size_t own_offset = 0;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank == rank_) own_offset = offset;
      const size_t count = CountIn(counts[rank], round, per_round);
      load(strands[rank], round * per_round, count, payload() + offset);
      offset += count * bytes;
    }
    Post();
    status = AwaitAll();
    if (!status.ok()) return status;
    const size_t count = CountIn(counts[rank_], round, per_round);
    if (count == 0) continue;
    std::byte* const own = accumulators + round * per_round * bytes;
    reduction.Combine(own, shown(0) + own_offset, shown(1) + own_offset, count);
    for (int peer = 2; peer < world_size_; ++peer) {
      reduction.Combine(own, own, shown(peer) + own_offset, count);
    }
  }
  return absl::OkStatus();
}

absl::Status Inside::Show(const std::vector<Strand>& strands, bool takes) {
  if (world_size_ == 1) return absl::OkStatus();
  const std::vector<size_t> counts = CountsOf(strands);
  const size_t per_round = kPayloadBytes / element_bytes_;
  const size_t rounds = RoundsFor(counts, per_round);
  for (size_t round = 0; round < rounds; ++round) {
    absl::Status status = Open();
    if (!status.ok()) return status;
    const size_t first = round * per_round;
    ForPieces(strands[rank_], first, CountIn(counts[rank_], round, per_round),
              element_bytes_, [&](const Block& piece, size_t done) {
                std::memcpy(payload() + done * element_bytes_, piece.data,
                            piece.count * element_bytes_);
              });
    Post();
    if (is_first()) status = AwaitAll();
    if (!status.ok()) return status;
    if (!takes) continue;
    for (const int peer : Others()) {
      const size_t count = CountIn(counts[peer], round, per_round);
      if (count == 0) continue;
      status = Await(peer, element_count(), /*has_row=*/false);
      if (!status.ok()) return status;
      ForPieces(strands[peer], first, count, element_bytes_,
                [&](const Block& piece, size_t done) {
                  if (piece.data == nullptr) return;
                  std::memcpy(piece.data, shown(peer) + done * element_bytes_,
                              piece.count * element_bytes_);
                });
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::dataplane::shm_internal
