#include "dataplane/cpu/shm/intra_host.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status.h"

namespace muster::dataplane::shm {
namespace {

// The bytes of the others' data that are combined at once: they stay in a
// processor's cache.
constexpr size_t kThereBytes = 128 << 10;

// Calls `function` with each block's piece of elements [first, first + count)
// of `block_list`, and the number of elements before it in that range.
template <typename Function>
void ForPieces(const BlockList& block_list, size_t first, size_t count,
               size_t element_bytes, Function&& function) {
  size_t done = 0;
  for (const Block& block : block_list) {
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

}  // namespace

size_t CountElements(const BlockList& block_list) {
  size_t count = 0;
  for (const Block& block : block_list) count += block.count;
  return count;
}

MessageHeader MakeHeader(const Collective& collective) {
  MessageHeader header = MessageHeader::Of(collective);
  // Input sizes must agree here. Kinds with a size per rank have a hash of all
  // sizes instead.
  if (GetTraits(collective.kind).outputs == TensorList::kWhole) {
    header.element_count = collective.inputs[0].element_count();
  }
  return header;
}

IntraHost::IntraHost(ShmContext& context, const Collective& collective)
    : Rounds(context, collective, /*has_rows=*/false) {
  set_element_count(MakeHeader(collective).element_count);
}

std::vector<size_t> IntraHost::ComputeCounts(
    const std::vector<BlockList>& block_lists) {
  std::vector<size_t> counts;
  counts.reserve(block_lists.size());
  for (const BlockList& block_list : block_lists)
    counts.push_back(CountElements(block_list));
  return counts;
}

Status IntraHost::Meet() {
  if (world_size_ == 1) return OkStatus();
  return Rounds::Meet();
}

Status IntraHost::MeetAt(const Block& whole) {
  if (world_size_ == 1) return OkStatus();
  RemoteBuffers places;
  Status status = PublishLocation(whole, kManyBytes, places);
  if (!status.ok()) return status;
  const StatusOr<bool> is_mapped = AwaitRemoteBuffers(places);
  if (!is_mapped.ok()) return is_mapped.status();
  has_met_ = true;
  if (*is_mapped) mapped_ = std::move(places);
  whole_ = whole.data;
  return OkStatus();
}

// A rank's results may overwrite its own operand, which must not be lost before
// its turn. The operand of the first rank (or of the first two, if elements are
// combined) is used first; for other ranks, results go to scratch memory
// before.
void IntraHost::CombineThere(const Reduction& reduction,
                             const BlockList& block_list,
                             std::byte* accumulators) {
  const bool combines = reduction.combines_elements();
  const size_t bytes = reduction.accumulator_bytes();
  const size_t at_once = kThereBytes / std::max(bytes, element_bytes_);
  const bool is_beside = !block_list.empty() &&
                         accumulators == block_list[0].data &&
                         rank_ > (combines ? 1 : 0);
  std::byte* const beside = is_beside ? Scratch(kThereBytes) : nullptr;
  ForPieces(block_list, 0, CountElements(block_list), element_bytes_,
            [&](const Block& block, size_t before) {
              for (size_t done = 0; done < block.count; done += at_once) {
                const size_t count = std::min(at_once, block.count - done);
                const auto operand = [&](int peer) {
                  return There(peer, block.data + done * element_bytes_);
                };
                std::byte* const to = accumulators + (before + done) * bytes;
                std::byte* const all = is_beside ? beside : to;
                if (combines) {
                  reduction.Combine(all, operand(0), operand(1), count);
                } else {
                  reduction.Load(all, operand(0), count, mapped_->GetFactor(0));
                  reduction.Add(all, operand(1), count, mapped_->GetFactor(1));
                }
                for (int peer = 2; peer < world_size_; ++peer) {
                  reduction.Add(all, operand(peer), count,
                                mapped_->GetFactor(peer));
                }
                if (all != to) std::memcpy(to, all, count * bytes);
              }
            });
}

// The lambdas share the counts.
// NOLINTNEXTLINE(readability-function-size)
Status IntraHost::Combine(const Reduction& reduction,
                          const std::vector<BlockList>& block_lists,
                          std::byte* accumulators) {
  const size_t bytes = reduction.accumulator_bytes();
  const std::vector<size_t> counts = ComputeCounts(block_lists);
  const auto load = [&](const BlockList& block_list, size_t first, size_t count,
                        std::byte* to) {
    ForPieces(block_list, first, count, element_bytes_,
              [&](const Block& piece, size_t done) {
                reduction.Load(to + done * bytes, piece.data, piece.count,
                               collective().factor);
              });
  };
  const auto show = [&](const BlockList& block_list, size_t first, size_t count,
                        size_t offset) {
    if (!reduction.combines_elements()) {
      load(block_list, first, count, payload() + offset);
      return;
    }
    ForPieces(block_list, first, count, element_bytes_,
              [&](const Block& piece, size_t done) {
                Write(offset + done * bytes, piece.data, piece.count * bytes);
              });
  };
  if (world_size_ == 1) {
    load(block_lists[0], 0, counts[0], accumulators);
    return OkStatus();
  }
  // The others publish what they have computed from this rank's data before
  // that is overwritten.
  if (is_mapped()) {
    CombineThere(reduction, block_lists[rank_], accumulators);
    return OkStatus();
  }
  const auto idle = std::count(counts.begin(), counts.end(), size_t{0});
  const auto busy = std::max<size_t>(1, counts.size() - idle);
  const size_t per_round = kPieceBytes / busy / bytes;
  const size_t rounds = ChunksFor(std::ranges::max(counts), per_round);
  for (size_t round = 0; round < rounds; ++round) {
    const auto count_of = [&](int rank) {
      return CutChunk(counts[rank], round, per_round).count;
    };
    // No other rank reads a rank's own part, so it is not published.
    const auto elements_before = [&](int rank, int shower) {
      size_t before = 0;
      for (int each = 0; each < rank; ++each) {
        if (each != shower) before += count_of(each);
      }
      return before;
    };
    Status status = Open(elements_before(world_size_, rank_) * bytes);
    if (!status.ok()) return status;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank == rank_) continue;
      show(block_lists[rank], round * per_round, count_of(rank),
           elements_before(rank, rank_) * bytes);
    }
    Post();
    // Copied first, because the accumulators may overwrite it.
    const size_t own_count = count_of(rank_);
    std::byte* const own = Scratch(own_count * bytes);
    load(block_lists[rank_], round * per_round, own_count, own);
    status = AwaitAll();
    if (!status.ok()) return status;
    if (own_count == 0) continue;
    const auto operand = [&](int peer) -> const std::byte* {
      if (peer == rank_) return own;
      return published(peer) + elements_before(rank_, peer) * bytes;
    };
    std::byte* const all = accumulators + round * per_round * bytes;
    reduction.Combine(all, operand(0), operand(1), own_count);
    for (int peer = 2; peer < world_size_; ++peer) {
      reduction.Combine(all, all, operand(peer), own_count);
    }
  }
  return OkStatus();
}

Status IntraHost::Publish(const std::vector<BlockList>& block_lists,
                          bool takes) {
  if (world_size_ == 1) return OkStatus();
  const std::vector<size_t> counts = ComputeCounts(block_lists);
  const size_t per_round = kPieceBytes / element_bytes_;
  const size_t rounds = ChunksFor(std::ranges::max(counts), per_round);
  for (size_t round = 0; round < rounds; ++round) {
    const size_t first = round * per_round;
    const size_t shows = CutChunk(counts[rank_], round, per_round).count;
    Status status = Open(shows * element_bytes_);
    if (!status.ok()) return status;
    ForPieces(block_lists[rank_], first, shows, element_bytes_,
              [&](const Block& piece, size_t done) {
                Write(done * element_bytes_, piece.data,
                      piece.count * element_bytes_);
              });
    Post();
    if (is_first()) status = AwaitAll();
    if (!status.ok()) return status;
    if (!takes) continue;
    for (const int peer : Others()) {
      const size_t count = CutChunk(counts[peer], round, per_round).count;
      if (count == 0) continue;
      status = Await(peer, element_count());
      if (!status.ok()) return status;
      ForPieces(block_lists[peer], first, count, element_bytes_,
                [&](const Block& piece, size_t done) {
                  if (piece.data == nullptr) return;
                  std::memcpy(piece.data,
                              published(peer) + done * element_bytes_,
                              piece.count * element_bytes_);
                });
    }
  }
  return OkStatus();
}

Status IntraHost::PublishWhole(const std::vector<BlockList>& block_lists) {
  if (!is_mapped()) return Publish(block_lists, /*takes=*/true);
  Status status = Open(0);
  if (!status.ok()) return status;
  Post();
  for (const int peer : Others()) {
    const size_t count = CountElements(block_lists[peer]);
    if (count == 0) continue;
    status = Await(peer, element_count());
    if (!status.ok()) return status;
    ForPieces(block_lists[peer], 0, count, element_bytes_,
              [&](const Block& piece, size_t) {
                std::memcpy(piece.data, There(peer, piece.data),
                            piece.count * element_bytes_);
              });
  }
  return OkStatus();
}

}  // namespace muster::dataplane::shm
