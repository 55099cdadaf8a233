#include "dataplane/cpu/shm/all_to_all.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/shm/per_peer_rounds.h"
#include "dataplane/cpu/shm/selection.h"
#include "dataplane/cpu/shm/streaming.h"

namespace muster::dataplane::shm {
namespace {

// Up to here a rank shows what it gives, wherever that is, if one round holds
// it: nobody has to go and get it.
constexpr size_t kShownBytesMax = 24 << 10;

class AllToAll : public PerPeerRounds {
 public:
  AllToAll(ShmContext& context, const Collective& collective)
      : PerPeerRounds(context, collective),
        give_(collective.inputs, collective.input_splits, world_size_),
        take_(collective.outputs, collective.output_splits, world_size_),
        bytes_(collective.bytes()),
        per_round_(CountForEachOther(most_bytes())) {}

  // What it calls is inlined: it is often run with little data.
  [[gnu::noinline, gnu::flatten]] StatusOr<AllToAllOutcome> Run(
      const AllToAllOptions& options,
      absl::FunctionRef<bool(size_t)> reads_rather);

 private:
  // A row that is not even has one of these in its rank's own place: origins
  // stand behind it, all of which are mapped, or some only the system can read.
  enum Shows : uint64_t { kElements, kMapped, kReadable };
  Shows ShownBy(int peer) const {
    return IsEven(peer) ? kElements : Shows{RowOf(peer)[peer]};
  }
  // Finds those. kElements: it is little, or not all of it is `where` it must
  // be.
  [[gnu::noinline]] Shows FindOrigins(Scope where);
  // Begins a round, and writes such a row.
  [[gnu::noinline]] Status OpenOrigins();

  // All have shown their first round: finds rounds_ and farthest_.
  inline void LookAtRows();
  // Of all other ranks' rows behind which elements are shown: the largest count
  // in any.
  inline uint64_t CountMax() const;
  // Of all ranks' rows: what reads_rather is asked with.
  size_t BytesMax() const;

  Block ChunkOfThis(const Block& block) const {
    return ChunkOf(block, round_, per_round_, element_bytes_);
  }
  void CopyTo(std::byte* to, const std::byte* from, size_t count) const {
    CopyOut(to, from, count * element_bytes_, bytes_);
  }
  // Of what this rank has for itself: what no round has.
  inline void CopyRestOfOwn();
  // What `peer` has for this rank and shows in this round, or all of it if it
  // shows where that is.
  Status Take(int peer);
  [[gnu::noinline]] Status TakeThere(int peer);

  const cpu::Parts give_;
  const cpu::Parts take_;
  const size_t bytes_;
  // For each.
  const size_t per_round_;
  size_t rounds_ = 1;
  Shows shows_ = kElements;
  // What any rank shows that is farther away than what others do.
  Shows farthest_ = kElements;
  // By rank, if this one shows them.
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
    const uint64_t* const row = RowOf(peer);
    // Of an even row any other rank's is all.
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
  return Read(peer, SourceOf(peer, origin), 0, take.data,
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

// It may have more for itself than any rank has for another.
inline void AllToAll::CopyRestOfOwn() {
  const Block own = give_[rank_];
  const size_t done = ChunkOf(own.count, rounds_, per_round_).first;
  CopyTo(take_[rank_].data + done * element_bytes_,
         own.data + done * element_bytes_, own.count - done);
}

StatusOr<AllToAllOutcome> AllToAll::Run(
    const AllToAllOptions& options,
    absl::FunctionRef<bool(size_t)> reads_rather) {
  AllToAllOutcome outcome;
  if (options.origins.has_value()) shows_ = FindOrigins(*options.origins);
  for (round_ = 0; round_ < rounds_; ++round_) {
    Status status =
        shows_ == kElements ? OpenPerPeer(&give_, per_round_) : OpenOrigins();
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
      LookAtRows();
      if (options.hears) Hear(0);
      if (rounds_ > 1 && reads_rather(BytesMax())) {
        outcome.is_done = false;
        return outcome;
      }
    }
    // This rank may have little, and others much that is to be read; or they
    // have gone, and say why.
    if (farthest_ != kElements) LetOthersStart();
    // Before what is read: a large collective takes a third longer the other
    // way round.
    if (round_ + 1 == rounds_) CopyRestOfOwn();
    for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
      status = Take(peer);
      if (!status.ok()) return status;
    }
  }
  outcome.is_mapped = farthest_ == kMapped;
  if (farthest_ == kElements) return outcome;
  context().transport.set_algorithm(AlgorithmName(
      farthest_ == kMapped ? Algorithm::kSymmetric : Algorithm::kSingleCopy));
  const Status parted = Meet();
  if (!parted.ok()) return parted;
  return outcome;
}

}  // namespace

StatusOr<AllToAllOutcome> RunAllToAll(
    ShmContext& context, const Collective& collective,
    const AllToAllOptions& options,
    absl::FunctionRef<bool(size_t)> reads_rather) {
  context.transport.set_algorithm(AlgorithmName(Algorithm::kStaged));
  return AllToAll(context, collective).Run(options, reads_rather);
}

}  // namespace muster::dataplane::shm
