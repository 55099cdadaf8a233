// Rounds in which a rank has different data for each other rank.

#ifndef MUSTER_DATAPLANE_CPU_SHM_PER_PEER_ROUNDS_H_
#define MUSTER_DATAPLANE_CPU_SHM_PER_PEER_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/shm/rounds.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

// Each round begins with a row of counts: how much this rank has for each other
// rank. The part of that data that goes in this round follows, in the order of
// the ranks.
class PerPeerRounds : public Rounds {
 protected:
  PerPeerRounds(ShmContext& context, const Collective& collective)
      : Rounds(context, collective, HasRows(collective.kind)) {}

  // In reductions with factors, a rank publishes its factor in front of its
  // elements, in so many bytes that these stay aligned.
  static constexpr size_t kFactorBytes = 16;
  size_t factor_bytes() const {
    // Other reductions do not use `factor`, and ranks do not compare it.
    return IsReduction(collective().kind) &&
                   collective().reduce_op == ReduceOp::kPremulSum
               ? kFactorBytes
               : 0;
  }
  void PublishFactor(size_t offset) {
    if (factor_bytes() == 0) return;
    const double factor = collective().factor;
    std::memcpy(payload() + offset, &factor, sizeof(factor));
  }

  // Begins round `round_`. Writes the row, the factor if there is one, and this
  // round's part of `give` (null: nothing).
  inline Status OpenPerPeer(const cpu::Parts* give, size_t count_per_round);
  // The offsets, in the peer's published data, of its factor and of its
  // elements for this rank.
  size_t FactorOffset(int peer) const {
    return !has_rows()    ? 0
           : IsEven(peer) ? EvenRowBytes(CountFor(rank_, peer))
                          : row_bytes();
  }
  inline size_t PerPeerOffset(int peer, size_t count_per_round) const;
  // The elements for each other rank in a round of `round_bytes`; whole cache
  // lines unless they are few.
  size_t CountForEachOther(size_t round_bytes) const {
    const size_t bytes =
        (round_bytes - kFactorBytes - RoundBuffer::WholeLines(row_bytes())) /
        static_cast<size_t>(world_size_ - 1);
    return ElementsIn(bytes < 8 * RoundBuffer::kLineBytes
                          ? bytes
                          : bytes - bytes % RoundBuffer::kLineBytes);
  }

  // The current round, from 0.
  size_t round_ = 0;

 private:
  // The size of a one-word row with `count` elements for each rank behind it.
  // Long data begins at a cache line, so that vector loads do not cross lines.
  size_t EvenRowBytes(uint64_t count) const {
    return count > ElementsIn(RoundBuffer::kSlotBytes) ? RoundBuffer::kLineBytes
                                                       : sizeof(uint64_t);
  }
  // PerPeerOffset for a `row` that is not even.
  inline size_t UnevenOffset(const uint64_t* row, int peer,
                             size_t count_per_round) const;
};

inline Status PerPeerRounds::OpenPerPeer(const cpu::Parts* give,
                                         size_t count_per_round) {
  const auto given_to = [&](int rank) {
    return give == nullptr || rank == rank_ ? Block() : (*give)[rank];
  };
  const int some = After(rank_);
  const uint64_t even_count = given_to(some).count;
  bool is_even = true;
  size_t count = 0;
  for (int rank = some; rank != rank_; rank = After(rank)) {
    const Block block = given_to(rank);
    is_even = is_even && block.count == even_count;
    count += CutChunk(block.count, round_, count_per_round).count;
  }
  const size_t head_bytes = is_even ? EvenRowBytes(even_count) : row_bytes();
  size_t offset = head_bytes + factor_bytes();
  Status status = Open(offset + count * element_bytes_);
  if (!status.ok()) return status;
  if (is_even) {
    *reinterpret_cast<uint64_t*>(payload()) = even_count | kEven;
  } else {
    auto* const row = reinterpret_cast<uint64_t*>(payload());
    for (int rank = 0; rank < world_size_; ++rank) {
      row[rank] = given_to(rank).count;
    }
  }
  PublishFactor(head_bytes);
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    const Block chunk =
        CutChunk(given_to(rank), round_, count_per_round, element_bytes_);
    Write(offset, chunk.data, chunk.count * element_bytes_);
    offset += chunk.count * element_bytes_;
  }
  return status;
}

inline size_t PerPeerRounds::PerPeerOffset(int peer,
                                           size_t count_per_round) const {
  const uint64_t* const row = GetCounts(peer);
  if ((row[0] & kEven) == 0) return UnevenOffset(row, peer, count_per_round);
  const uint64_t count = row[0] & ~kEven;
  const size_t each = CutChunk(count, round_, count_per_round).count;
  const auto before = static_cast<size_t>(peer < rank_ ? rank_ - 1 : rank_);
  return EvenRowBytes(count) + factor_bytes() + each * before * element_bytes_;
}

inline size_t PerPeerRounds::UnevenOffset(const uint64_t* row, int peer,
                                          size_t count_per_round) const {
  size_t before = 0;
  for (int rank = 0; rank < rank_; ++rank) {
    if (rank == peer) continue;
    before += CutChunk(row[rank], round_, count_per_round).count;
  }
  return row_bytes() + factor_bytes() + before * element_bytes_;
}

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_PER_PEER_ROUNDS_H_
