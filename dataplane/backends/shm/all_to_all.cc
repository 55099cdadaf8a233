#include "dataplane/backends/shm/all_to_all.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/gloo/peer_memory.h"
#include "dataplane/backends/gloo/schedules.h"
#include "dataplane/backends/shm/dealt_rounds.h"
#include "dataplane/backends/shm/selection.h"
#include "dataplane/backends/shm/streaming.h"

namespace muster::dataplane::shm_internal {
namespace {

class AllToAll : public DealtRounds {
 public:
  AllToAll(Workshop& shop, const Collective& collective)
      : DealtRounds(shop, collective),
        give_(collective.inputs, collective.input_splits, world_size_),
        take_(collective.outputs, collective.output_splits, world_size_),
        bytes_(collective.bytes()),
        per_round_(CountForEachOther(most_bytes())) {}

  // What it calls is inlined: it is often run with little data.
  [[gnu::noinline, gnu::flatten]] absl::StatusOr<bool> Run(
      bool shows_origins, absl::FunctionRef<bool(size_t)> reads_rather);

 private:
  // Whether others can read all that they get.
  [[gnu::noinline]] bool CanBeRead() const;
  // Begins a round, and writes where what others get is, behind a row.
  absl::Status OpenOrigins();
  uint64_t OriginIn(int peer) const { return RowOf(peer)[world_size_ + rank_]; }

  // All have shown their first round: finds rounds_ and origins_.
  inline void LookAtRows(bool shows_origins);
  // Of all other ranks' rows behind which elements are shown: the largest count
  // in any.
  inline uint64_t CountMax() const;
  // Of all ranks' rows: the bytes of the largest one, to which belongs what its
  // rank has for itself.
  size_t BytesMax() const;

  Block ChunkOfThis(const Block& block) const {
    return ChunkOf(block, round_, per_round_, element_bytes_);
  }
  void CopyTo(std::byte* to, const std::byte* from, size_t count) const {
    CopyOut(to, from, count * element_bytes_, bytes_);
  }
  // Of what this rank has for itself: what no round has.
  inline void CopyRestOfOwn();
  // What `peer` has for this rank and shows in this round, or where that is.
  absl::Status Take(int peer);

  const gloo_internal::Parts give_;
  const gloo_internal::Parts take_;
  const size_t bytes_;
  // For each.
  const size_t per_round_;
  size_t rounds_ = 1;
  // How many ranks show where what they give is.
  int origins_ = 0;
};

bool AllToAll::CanBeRead() const {
  for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
    const Block block = give_[peer];
    if (block.count > 0 &&
        !gloo_internal::CanBeRead(block.data, block.count * element_bytes_)) {
      return false;
    }
  }
  return true;
}

absl::Status AllToAll::OpenOrigins() {
  absl::Status status = Open(2 * row_bytes());
  if (!status.ok()) return status;
  auto* const row = reinterpret_cast<uint64_t*>(payload());
  for (int peer = 0; peer < world_size_; ++peer) {
    const Block block = give_[peer];
    row[peer] = peer == rank_ ? kOrigins : block.count;
    row[world_size_ + peer] = reinterpret_cast<uint64_t>(block.data);
  }
  return status;
}

inline uint64_t AllToAll::CountMax() const {
  uint64_t most = 0;
  for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
    const uint64_t* const row = RowOf(peer);
    // Of an even row any other rank's is all.
    if ((row[0] & kEven) != 0) {
      most = std::max(most, row[0] & ~kEven);
      continue;
    }
    if (row[peer] == kOrigins) continue;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank != peer) most = std::max(most, row[rank]);
    }
  }
  return most;
}

size_t AllToAll::BytesMax() const {
  uint64_t most = 0;
  for (int peer = 0; peer < world_size_; ++peer) {
    uint64_t row = 0;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank == peer) continue;
      row += peer == rank_ ? give_[rank].count : CountFor(rank, peer);
    }
    most = std::max(most, row);
  }
  const auto ranks = static_cast<size_t>(world_size_);
  return most * element_bytes_ / (ranks - 1) * ranks;
}

absl::Status AllToAll::Take(int peer) {
  const Block whole = take_[peer];
  if (!ShowsOrigins(peer)) {
    const Block chunk = ChunkOfThis(whole);
    CopyTo(chunk.data, shown(peer) + DealtOffset(peer, per_round_),
           chunk.count);
    return absl::OkStatus();
  }
  if (round_ > 0) return absl::OkStatus();
  return Read(peer, {.address = OriginIn(peer)}, 0, whole.data,
              whole.count * element_bytes_);
}

void AllToAll::LookAtRows(bool shows_origins) {
  uint64_t most = CountMax();
  origins_ = shows_origins ? 1 : 0;
  for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
    if (!shows_origins) most = std::max<uint64_t>(most, give_[peer].count);
    if (ShowsOrigins(peer)) ++origins_;
  }
  rounds_ = RoundsFor(most, per_round_);
}

// It may have more for itself than any rank has for another.
inline void AllToAll::CopyRestOfOwn() {
  const Block own = give_[rank_];
  const size_t done = std::min(own.count, rounds_ * per_round_);
  CopyTo(take_[rank_].data + done * element_bytes_,
         own.data + done * element_bytes_, own.count - done);
}

absl::StatusOr<bool> AllToAll::Run(
    bool shows_origins, absl::FunctionRef<bool(size_t)> reads_rather) {
  shows_origins = shows_origins && CanBeRead();
  for (round_ = 0; round_ < rounds_; ++round_) {
    absl::Status status =
        shows_origins ? OpenOrigins() : OpenDealt(&give_, per_round_);
    if (!status.ok()) return status;
    Post(bytes_);
    // While others' come. (The first piece is copied once more if this does not
    // go on.)
    const Block own = ChunkOfThis(give_[rank_]);
    CopyTo(ChunkOfThis(take_[rank_]).data, own.data, own.count);
    for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
      status = Await(peer, take_[peer].count);
      if (!status.ok()) return status;
    }
    if (round_ == 0) {
      LookAtRows(shows_origins);
      if (rounds_ > 1 && reads_rather(BytesMax())) return false;
      // Beside little nothing is said.
      if (bytes_ > kPieceBytes) Hear(0);
    }
    // Before what is read: a large collective takes a third longer the other
    // way round.
    if (round_ + 1 == rounds_) CopyRestOfOwn();
    for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
      status = Take(peer);
      if (!status.ok()) return status;
    }
  }
  if (origins_ == 0) return true;
  if (origins_ == world_size_) {
    shop().mesh.set_algorithm(AlgorithmName(Algorithm::kSingleCopy));
  }
  const absl::Status parted = Part();
  if (!parted.ok()) return parted;
  return true;
}

}  // namespace

absl::StatusOr<bool> RunAllToAll(Workshop& shop, const Collective& collective,
                                 bool shows_origins,
                                 absl::FunctionRef<bool(size_t)> reads_rather) {
  shop.mesh.set_algorithm(AlgorithmName(Algorithm::kStaged));
  return AllToAll(shop, collective).Run(shows_origins, reads_rather);
}

}  // namespace muster::dataplane::shm_internal
