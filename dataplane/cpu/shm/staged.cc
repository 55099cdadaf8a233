#include "dataplane/cpu/shm/staged.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/shm/per_peer_rounds.h"
#include "dataplane/cpu/shm/streaming.h"
#include "dataplane/reduction.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

using cpu::Parts;
using cpu::ToBlock;

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) CopyShort(to, from, bytes);
}

// Each function that runs a kind is called from one place and inlined there, so
// that none pays for the stack of the others.
class Staged : public PerPeerRounds {
 public:
  Staged(ShmContext& context, const Collective& collective)
      : PerPeerRounds(context, collective) {}

  Status Barrier();
  Status Gather();
  Status Broadcast();
  Status ReduceAtOnce();
  Status ReduceByParts();
  Status Reduce();
  Status ReduceScatter();
  Status Scatter();

  // Whether ReduceAtOnce can run `collective`.
  static bool FitsAtOnce(const Collective& collective) {
    return collective.tensors[0].bytes() <= kPieceBytes - kFactorBytes;
  }

 private:
  // Publishes this rank's factor, if there are factors, and the elements of
  // `block` from `offset` on.
  void ShowElements(const Block& block, size_t offset);
  // The addresses of the operands, by rank. This rank's is its tensor: another
  // processor may have the lines that it has published.
  using Operands = absl::InlinedVector<const void*, 16>;
  Operands OperandsAt(size_t offset, const Block& own) const;
  // Combines `operands`. The other ranks' factors are in their published data,
  // at FactorOffset.
  void Combine(const Reduction& reduction, const Operands& operands,
               const Block& result);

  // One round of Broadcast, with `chunk` of a tensor of `all_bytes`.
  inline Status BroadcastRound(const Block& chunk, size_t all_bytes);
};

// If many ranks share processors, rank 0 alone looks at all others, and they at
// rank 0: to look at each takes longer than to change between them.
Status Staged::Barrier() {
  constexpr int kManyRanks = 48;
  if (!is_crowded() || world_size_ < kManyRanks) return Meet();
  Status status = Open(0);
  if (!status.ok()) return status;
  Post();
  status = rank_ == 0 ? AwaitAll() : Await(0, element_count());
  if (status.ok()) status = Open(0);
  if (!status.ok()) return status;
  Post();
  return rank_ == 0 ? OkStatus() : Await(0, element_count());
}

void Staged::ShowElements(const Block& block, size_t offset) {
  PublishFactor(0);
  Write(offset, block.data, block.count * element_bytes_);
}

inline Staged::Operands Staged::OperandsAt(size_t offset,
                                           const Block& own) const {
  Operands operands(world_size_);
  for (int peer = 0; peer < world_size_; ++peer) {
    operands[peer] = peer == rank_ ? own.data : published(peer) + offset;
  }
  return operands;
}

void Staged::Combine(const Reduction& reduction, const Operands& operands,
                     const Block& result) {
  absl::InlinedVector<double, 16> factors;
  if (reduction.scales()) {
    factors.resize(world_size_, collective().factor);
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_) continue;
      std::memcpy(&factors[peer], published(peer) + FactorOffset(peer),
                  sizeof(double));
    }
  }
  CombineAll(reduction, result, operands, factors);
}

// Every rank that gives publishes its data, in as many rounds as needed. All
// ranks take, or only the root of a gather, which does not publish.
Status Staged::Gather() {
  const bool to_root = IsRooted(collective().kind);
  const bool takes = !to_root || rank_ == collective().root;
  const Block give = ToBlock(collective().inputs[0]);
  const Parts take(collective().outputs, world_size_);
  // The same on all ranks.
  size_t most = give.count;
  for (int peer = 0; peer < world_size_ && !to_root; ++peer) {
    most = std::max(most, take[peer].count);
  }
  const size_t all_bytes = most * element_bytes_ * world_size_;
  const bool shows = !to_root || !takes;
  if (shows) set_element_count(give.count);
  const size_t per_round = ElementsIn(to_root ? kPieceBytes : most_bytes());
  const size_t rounds = ChunksFor(most, per_round);
  for (round_ = 0; round_ < rounds; ++round_) {
    const Block shown_now =
        shows ? CutChunk(give, round_, per_round, element_bytes_) : Block();
    Status status = Open(shown_now.count * element_bytes_);
    if (!status.ok()) return status;
    Write(0, shown_now.data, shown_now.count * element_bytes_);
    Post();
    if (!takes) continue;
    // The data is still in a cache if it was just published.
    const Block own = CutChunk(give, round_, per_round, element_bytes_);
    CopyOut(CutChunk(take[rank_], round_, per_round, element_bytes_).data,
            own.data, own.count * element_bytes_, all_bytes);
    for (int peer = After(rank_); peer != rank_; peer = After(peer)) {
      const Block wanted = take[peer];
      const Block chunk = CutChunk(wanted, round_, per_round, element_bytes_);
      const bool is_taken = chunk.count > 0 && wanted.data != nullptr;
      if (round_ > 0 && !is_taken) continue;
      status = Await(peer, wanted.count);
      if (!status.ok()) return status;
      if (!is_taken) continue;
      CopyOut(chunk.data, published(peer), chunk.count * element_bytes_,
              all_bytes);
    }
  }
  return OkStatus();
}

Status Staged::Broadcast() {
  const Block tensor = ToBlock(collective().tensors[0]);
  const size_t bytes = tensor.count << element_bits_;
  if (bytes <= kPieceBytes) return BroadcastRound(tensor, bytes);
  const size_t per_round = ElementsIn(kPieceBytes);
  const size_t rounds = ChunksFor(tensor.count, per_round);
  for (round_ = 0; round_ < rounds; ++round_) {
    Status status = BroadcastRound(
        CutChunk(tensor, round_, per_round, element_bytes_), bytes);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

inline Status Staged::BroadcastRound(const Block& chunk, size_t all_bytes) {
  const int root = collective().root;
  const bool is_root = rank_ == root;
  const size_t bytes = chunk.count << element_bits_;
  Status status = Open(is_root ? bytes : 0);
  if (!status.ok()) return status;
  if (is_root) Write(0, chunk.data, bytes);
  Post();
  if (is_root) return status;
  status = Await(root, all_bytes >> element_bits_);
  if (!status.ok()) return status;
  CopyOut(chunk.data, published(root), bytes, all_bytes);
  return status;
}

Status Staged::ReduceAtOnce() {
  const Reduction& reduction =
      Reduction::Of(collective().data_type(), collective().reduce_op);
  const Block tensor = ToBlock(collective().tensors[0]);
  const size_t bytes = tensor.count * element_bytes_;
  Status status = Open(factor_bytes() + bytes);
  if (!status.ok()) return status;
  ShowElements(tensor, factor_bytes());
  Post();
  status = AwaitAll();
  if (status.ok()) {
    Combine(reduction, OperandsAt(factor_bytes(), tensor), tensor);
  }
  return status;
}

// Each round publishes this rank's part of the last round's result, and the
// next chunk of its tensor without the part that it combines itself.
Status Staged::ReduceByParts() {
  const Reduction& reduction =
      Reduction::Of(collective().data_type(), collective().reduce_op);
  const Block tensor = ToBlock(collective().tensors[0]);
  const auto ranks = static_cast<size_t>(world_size_);
  // The part of the result takes the room of the rank's own part. A part may
  // have one element more than another, and takes whole lines.
  const size_t per_round =
      ElementsIn(most_bytes() - kFactorBytes - RoundBuffer::kLineBytes) - 1;
  const size_t chunks = ChunksFor(tensor.count, per_round);
  // The parts of the last round's chunk.
  Blocks parts;
  // The room for the last round's results, in front of the elements; the same
  // on all ranks.
  size_t result_bytes = 0;
  for (round_ = 0; round_ <= chunks; ++round_) {
    const Block chunk = CutChunk(tensor, round_, per_round, element_bytes_);
    Blocks next = cpu::CutParts(chunk, ranks, element_bytes_);
    // No other rank needs this rank's part.
    const Block& own = next[rank_];
    const auto before = static_cast<size_t>(own.data - chunk.data);
    const size_t own_bytes = own.count * element_bytes_;
    const size_t others_bytes = chunk.count * element_bytes_ - own_bytes;
    const size_t elements = factor_bytes() + result_bytes;
    Status status = Open(elements + others_bytes);
    if (!status.ok()) return status;
    if (round_ > 0) {
      Write(factor_bytes(), parts[rank_].data,
            parts[rank_].count * element_bytes_);
    }
    PublishFactor(0);
    Write(elements, chunk.data, before);
    Write(elements + before, own.data + own_bytes, others_bytes - before);
    Post();
    status = AwaitAll();
    if (!status.ok()) return status;
    for (int peer = 0; peer < world_size_ && round_ > 0; ++peer) {
      if (peer == rank_) continue;
      Copy(parts[peer].data, published(peer) + factor_bytes(),
           parts[peer].count * element_bytes_);
    }
    if (round_ == chunks) break;
    Operands operands(world_size_);
    for (int peer = 0; peer < world_size_; ++peer) {
      // The part that the peer leaves out would stand in front of this one.
      const size_t left_out =
          peer < rank_ ? next[peer].count * element_bytes_ : 0;
      operands[peer] = peer == rank_
                           ? own.data
                           : published(peer) + elements + before - left_out;
    }
    Combine(reduction, operands, own);
    parts = std::move(next);
    result_bytes =
        RoundBuffer::WholeLines((chunk.count / ranks + 1) * element_bytes_);
  }
  return OkStatus();
}

Status Staged::Reduce() {
  const Reduction& reduction =
      Reduction::Of(collective().data_type(), collective().reduce_op);
  const Block tensor = ToBlock(collective().tensors[0]);
  const bool is_root = rank_ == collective().root;
  const size_t per_round = ElementsIn(kPieceBytes - kFactorBytes);
  const size_t rounds = ChunksFor(tensor.count, per_round);
  for (round_ = 0; round_ < rounds; ++round_) {
    const Block chunk = CutChunk(tensor, round_, per_round, element_bytes_);
    Status status = Open(factor_bytes() + chunk.count * element_bytes_);
    if (!status.ok()) return status;
    ShowElements(chunk, factor_bytes());
    Post();
    if (!is_root) continue;
    status = AwaitAll();
    if (!status.ok()) return status;
    Combine(reduction, OperandsAt(factor_bytes(), chunk), chunk);
  }
  return OkStatus();
}

// Every rank publishes its data for all others, and each rank combines its own
// part, which has one size on all ranks.
Status Staged::ReduceScatter() {
  const Reduction& reduction =
      Reduction::Of(collective().data_type(), collective().reduce_op);
  const Parts give(collective().inputs, world_size_);
  const Block output = ToBlock(collective().outputs[0]);
  const size_t per_round = CountForEachOther(most_bytes());
  size_t most = 0;
  for (int peer = 0; peer < world_size_; ++peer) {
    most = std::max(most, give[peer].count);
  }
  const size_t rounds = ChunksFor(most, per_round);
  for (round_ = 0; round_ < rounds; ++round_) {
    Status status = OpenPerPeer(&give, per_round);
    if (!status.ok()) return status;
    Post();
    for (int peer = 0; peer < world_size_ && status.ok(); ++peer) {
      status = Await(peer, output.count);
    }
    if (!status.ok()) return status;
    Operands operands(world_size_);
    for (int peer = 0; peer < world_size_; ++peer) {
      operands[peer] =
          peer == rank_
              ? CutChunk(give[peer], round_, per_round, element_bytes_).data
              : published(peer) + PerPeerOffset(peer, per_round);
    }
    Combine(reduction, operands,
            CutChunk(output, round_, per_round, ResultBytes(reduction)));
  }
  return OkStatus();
}

Status Staged::Scatter() {
  const Block output = ToBlock(collective().outputs[0]);
  const bool is_root = rank_ == collective().root;
  // Empty on other ranks than the root.
  const Parts give(collective().inputs, world_size_);
  const size_t per_round = CountForEachOther(kPieceBytes);
  const size_t rounds = ChunksFor(output.count, per_round);
  for (round_ = 0; round_ < rounds; ++round_) {
    Status status = OpenPerPeer(is_root ? &give : nullptr, per_round);
    if (!status.ok()) return status;
    Post();
    if (is_root) {
      if (round_ == 0) {
        const size_t bytes = output.count * element_bytes_;
        CopyOut(output.data, give[rank_].data, bytes, bytes);
      }
      continue;
    }
    status = Await(collective().root, output.count);
    if (!status.ok()) return status;
    const Block chunk = CutChunk(output, round_, per_round, element_bytes_);
    CopyOut(chunk.data,
            published(collective().root) +
                PerPeerOffset(collective().root, per_round),
            chunk.count * element_bytes_, output.count * element_bytes_);
  }
  return OkStatus();
}

template <Status (Staged::*kRun)(), Algorithm kAlgorithm = Algorithm::kStaged>
[[gnu::flatten]] Status RunBy(ShmContext& context,
                              const Collective& collective) {
  context.transport.set_algorithm(AlgorithmName(kAlgorithm));
  return (Staged(context, collective).*kRun)();
}

}  // namespace

StagedRun FindStaged(CollectiveKind kind) {
  switch (GetTraits(kind).list_form) {
    case CollectiveKind::kAllReduce:
      return RunBy<&Staged::ReduceByParts, Algorithm::kByParts>;
    case CollectiveKind::kReduce:
      return RunBy<&Staged::Reduce>;
    case CollectiveKind::kReduceScatter:
      return RunBy<&Staged::ReduceScatter>;
    case CollectiveKind::kScatter:
      return RunBy<&Staged::Scatter>;
    case CollectiveKind::kBroadcast:
      return RunBy<&Staged::Broadcast>;
    case CollectiveKind::kBarrier:
      return RunBy<&Staged::Barrier>;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      return RunBy<&Staged::Gather>;
    default:
      return nullptr;
  }
}

StagedRun FindStaged(const Collective& collective, Algorithm algorithm) {
  if (algorithm == Algorithm::kOneRound &&
      collective.kind == CollectiveKind::kAllReduce &&
      Staged::FitsAtOnce(collective)) {
    return RunBy<&Staged::ReduceAtOnce, Algorithm::kOneRound>;
  }
  return FindStaged(collective.kind);
}

}  // namespace muster::dataplane::shm
