#include "dataplane/cpu/shm/all_to_all.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/shm/per_peer_rounds.h"
#include "dataplane/cpu/shm/streaming.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

// Up to this size a rank publishes elements, not addresses, if one round holds
// them: no rank has to fetch them.
constexpr size_t kShownBytesMax = 24 << 10;

class AllToAll : public PerPeerRounds {
 public:
  AllToAll(ShmContext& context, const Collective& collective)
      : PerPeerRounds(context, collective),
        give_(collective.inputs, collective.input_splits, world_size_),
        take_(collective.outputs, collective.output_splits, world_size_),
        bytes_(collective.bytes()),
        per_round_(CountForEachOther(most_bytes())) {}

  // Its callees are inlined, because it often runs with little data.
  [[gnu::noinline, gnu::flatten]] StatusOr<bool> Run(
      std::optional<Scope> origins,
      absl::FunctionRef<bool(size_t)> reads_rather);

 private:
  // A row that is not even has one of these in its rank's own entry. kMapped,
  // kReadable: addresses stand behind the row; all are mapped, or only the
  // system can read some.
  enum Shows : uint64_t { kElements, kMapped, kReadable };
  Shows ShownBy(int peer) const {
    return IsEven(peer) ? kElements : Shows{GetCounts(peer)[peer]};
  }
  // Finds the addresses. kElements if the data is small or not all of it is in
  // scope `where`.
  [[gnu::noinline]] Shows FindOrigins(Scope where);
  // Begins a round and writes a row with addresses.
  [[gnu::noinline]] Status OpenOrigins();

  // Sets rounds_ and farthest_ when all ranks have published their first round.
  inline void LookAtRows();
  // The largest count in the other ranks' rows that have elements behind them.
  inline uint64_t CountMax() const;
  // The argument of reads_rather, from all ranks' rows.
  size_t BytesMax() const;

  Block ChunkOfThis(const Block& block) const {
    return CutChunk(block, round_, per_round_, element_bytes_);
  }
  void CopyTo(std::byte* to, const std::byte* from, size_t count) const {
    CopyOut(to, from, count * element_bytes_, bytes_);
  }
  // Copies the rest of this rank's data for itself that no round contains.
  inline void CopyRestOfOwn();
  // Takes the elements for this rank that `peer` publishes in this round, or
  // all of them if it has published addresses.
  Status Take(int peer);
  [[gnu::noinline]] Status TakeThere(int peer);

  const cpu::Parts give_;
  const cpu::Parts take_;
  const size_t bytes_;
  // The elements per round for each rank.
  const size_t per_round_;
  size_t rounds_ = 1;
  Shows shows_ = kElements;
  // The largest Shows of any rank.
  Shows farthest_ = kElements;
  // By rank; empty if this rank publishes elements.
  std::vector<SourceAddress> origins_;
};

AllToAll::Shows AllToAll::FindOrigins(Scope where) {
  Shows shows = kMapped;
  size_t bytes = 0;
  size_t most = 0;
  for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
    bytes += give_[peer].count * element_bytes_;
    most = std::max<size_t>(most, give_[peer].count);
  }
  if (bytes <= kShownBytesMax && most <= per_round_) return kElements;
  origins_.resize(world_size_);
  for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
    const Access reach = FindSource(give_[peer], where, origins_[peer]);
    if (reach == Access::kNone) return kElements;
    if (reach == Access::kBySystem) shows = kReadable;
  }
  return shows;
}

Status AllToAll::OpenOrigins() {
  Status status = Open(row_bytes() + world_size_ * sizeof(SourceAddress));
  if (!status.ok()) return status;
  auto* const row = reinterpret_cast<uint64_t*>(payload());
  for (int peer = 0; peer < world_size_; ++peer) {
    row[peer] = peer == rank_ ? shows_ : give_[peer].count;
  }
  std::memcpy(row + world_size_, origins_.data(),
              world_size_ * sizeof(SourceAddress));
  return status;
}

inline uint64_t AllToAll::CountMax() const {
  uint64_t most = 0;
  for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
    const uint64_t* const row = GetCounts(peer);
    // An even row has one count for all other ranks.
    if ((row[0] & kEven) != 0) {
      most = std::max(most, row[0] & ~kEven);
      continue;
    }
    if (row[peer] != kElements) continue;
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

inline Status AllToAll::Take(int peer) {
  if (ShownBy(peer) != kElements) {
    return round_ == 0 ? TakeThere(peer) : OkStatus();
  }
  const Block chunk = ChunkOfThis(take_[peer]);
  CopyTo(chunk.data, published(peer) + PerPeerOffset(peer, per_round_),
         chunk.count);
  return OkStatus();
}

Status AllToAll::TakeThere(int peer) {
  const Block take = take_[peer];
  if (take.count == 0) return OkStatus();
  SourceAddress origin;
  std::memcpy(&origin,
              published(peer) + row_bytes() + rank_ * sizeof(SourceAddress),
              sizeof(origin));
  return Read(peer, MakeSource(peer, origin), 0, take.data,
              take.count * element_bytes_);
}

inline void AllToAll::LookAtRows() {
  uint64_t most = CountMax();
  farthest_ = shows_;
  for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
    if (shows_ == kElements) most = std::max<uint64_t>(most, give_[peer].count);
    farthest_ = std::max(farthest_, ShownBy(peer));
  }
  rounds_ = ChunksFor(most, per_round_);
}

// A rank may have more for itself than any rank has for another.
inline void AllToAll::CopyRestOfOwn() {
  const Block own = give_[rank_];
  const size_t done = CutChunk(own.count, rounds_, per_round_).first;
  CopyTo(take_[rank_].data + done * element_bytes_,
         own.data + done * element_bytes_, own.count - done);
}

StatusOr<bool> AllToAll::Run(std::optional<Scope> origins,
                             absl::FunctionRef<bool(size_t)> reads_rather) {
  if (origins.has_value()) shows_ = FindOrigins(*origins);
  for (round_ = 0; round_ < rounds_; ++round_) {
    Status status =
        shows_ == kElements ? OpenPerPeer(&give_, per_round_) : OpenOrigins();
    if (!status.ok()) return status;
    Post();
    // Copy while the others' data comes. (A second run copies the first piece
    // again.)
    const Block own = ChunkOfThis(give_[rank_]);
    CopyTo(ChunkOfThis(take_[rank_]).data, own.data, own.count);
    for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
      status = Await(peer, take_[peer].count);
      if (!status.ok()) return status;
    }
    if (round_ == 0) {
      LookAtRows();
      if (rounds_ > 1 && reads_rather(BytesMax())) return false;
    }
    // Copy before reading: in the other order a large collective takes a third
    // longer.
    if (round_ + 1 == rounds_) CopyRestOfOwn();
    for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
      status = Take(peer);
      if (!status.ok()) return status;
    }
  }
  if (farthest_ == kElements) return true;
  context().transport.set_algorithm(AlgorithmName(
      farthest_ == kMapped ? Algorithm::kSymmetric : Algorithm::kSingleCopy));
  Status parted = Meet();
  if (!parted.ok()) return parted;
  return true;
}

}  // namespace

StatusOr<bool> RunAllToAll(ShmContext& context, const Collective& collective,
                           std::optional<Scope> origins,
                           absl::FunctionRef<bool(size_t)> reads_rather) {
  context.transport.set_algorithm(AlgorithmName(Algorithm::kStaged));
  return AllToAll(context, collective).Run(origins, reads_rather);
}

}  // namespace muster::dataplane::shm
