#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/collectives/selection.h"
#include "dataplane/reduction.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// The order of operands below depends on ranks only. Each element is combined
// either once (ring) or on every rank from the same operands in the same order
// (recursive doubling). So results are bitwise equal on all ranks.

struct Reduced {
  const Tensor& tensor;
  const Reduction& reduction;

  std::byte* data() const { return static_cast<std::byte*>(tensor.data()); }
  size_t count() const { return tensor.element_count(); }
  size_t element_bytes() const { return DataTypeBytes(tensor.data_type()); }
};

// Ring: reduce-scatter, then all-gather, in 2(n - 1) steps. In each, a rank
// sends one n-th of the tensor to the next rank. Each byte crosses each link at
// most twice, which is optimal. (Patarasuk, Yuan: Bandwidth optimal all-reduce
// algorithms, 2009.)
//
// A chunk, the n-th part, is cut into segments, which are all on the way at
// once: message i carries segment (i mod segments) in step (i / segments). A
// segment that arrives in one step is sent on in the next.
class Ring {
 public:
  Ring(const Reduced& reduced, Exchange& exchange)
      : reduced_(reduced),
        exchange_(exchange),
        rank_(exchange.rank()),
        world_size_(exchange.world_size()),
        next_((rank_ + 1) % world_size_),
        previous_((rank_ - 1 + world_size_) % world_size_),
        segments_(SegmentsPerChunk()),
        combining_messages_((world_size_ - 1) * segments_),
        messages_(2 * combining_messages_) {}

  Status Run() {
    Status status = exchange_.Handshake({next_}, {previous_});
    if (!status.ok()) return status;
    PrepareBuffers();
    for (size_t i = 0; i < std::min(kAhead, messages_); ++i) {
      status = Announce(i);
      if (!status.ok()) return status;
    }
    // The first step sends this rank's own chunk.
    for (size_t i = 0; i < segments_; ++i) {
      status = Send(i);
      if (!status.ok()) return status;
    }
    for (size_t i = 0; i < messages_; ++i) {
      status = Take(i);
      if (status.ok() && i + segments_ < messages_)
        status = Send(i + segments_);
      if (status.ok() && i + kAhead < messages_) status = Announce(i + kAhead);
      if (!status.ok()) return status;
    }
    for (size_t i = 0; i < messages_; ++i) {
      status = tensor_->WaitSend(next_);
      if (!status.ok()) return status;
    }
    return OkStatus();
  }

 private:
  static constexpr size_t kSegmentBytesMax = 512 << 10;

  // At least two, so that combining one segment overlaps receiving another.
  static constexpr size_t kSegmentsMin = 2;

  // The number of receives announced ahead. It bounds the scratch memory.
  static constexpr size_t kAhead = 4;

  size_t SegmentsPerChunk() const {
    const size_t chunk_bytes = reduced_.tensor.bytes() / world_size_ + 1;
    return std::max(kSegmentsMin, ChunksFor(chunk_bytes, kSegmentBytesMax));
  }

  Range Segment(int chunk, size_t segment) const {
    const Range whole = CutPart(reduced_.count(), chunk, world_size_);
    const Range part = CutPart(whole.count, segment, segments_);
    return {whole.first + part.first, part.count};
  }

  // The range that this rank sends as message i.
  Range Sent(size_t i) const {
    const int step = static_cast<int>(i / segments_);
    const int chunk = (rank_ - step + 2 * world_size_) % world_size_;
    return Segment(chunk, i % segments_);
  }

  // The range that arrives as message i: the previous rank sends it.
  Range Received(size_t i) const {
    const int step = static_cast<int>(i / segments_);
    const int chunk = (rank_ - 1 - step + 2 * world_size_) % world_size_;
    return Segment(chunk, i % segments_);
  }

  size_t Bytes(size_t count) const { return count * reduced_.element_bytes(); }

  void PrepareBuffers() {
    tensor_ = exchange_.Wrap(reduced_.data(), reduced_.tensor.bytes());
    const size_t chunk_count = reduced_.count() / world_size_ + 1;
    const size_t slot_bytes = Bytes(chunk_count / segments_ + 1);
    std::byte* scratch = exchange_.Scratch(kAhead * slot_bytes);
    for (size_t i = 0; i < kAhead; ++i) {
      slots_[i] = scratch + i * slot_bytes;
      slot_buffers_[i] = exchange_.Wrap(slots_[i], slot_bytes);
    }
  }

  Status Announce(size_t i) {
    const Range range = Received(i);
    if (i < combining_messages_) {
      return slot_buffers_[i % kAhead]->Receive(previous_, 0,
                                                Bytes(range.count));
    }
    return tensor_->Receive(previous_, Bytes(range.first), Bytes(range.count));
  }

  Status Send(size_t i) {
    const Range range = Sent(i);
    return tensor_->Send(next_, Bytes(range.first), Bytes(range.count));
  }

  Status Take(size_t i) {
    if (i >= combining_messages_) return tensor_->WaitReceive(previous_);
    Status received = slot_buffers_[i % kAhead]->WaitReceive(previous_);
    if (!received.ok()) return received;
    const Range range = Received(i);
    std::byte* own = reduced_.data() + Bytes(range.first);
    reduced_.reduction.Combine(own, slots_[i % kAhead], own, range.count);
    // The last step of the reduce-scatter completes its chunk.
    if (i >= combining_messages_ - segments_) {
      reduced_.reduction.Finish(own, range.count, world_size_);
    }
    return OkStatus();
  }

  const Reduced& reduced_;
  Exchange& exchange_;
  const int rank_;
  const int world_size_;
  const int next_;
  const int previous_;
  const size_t segments_;
  // The number of messages of the reduce-scatter, and of both phases.
  const size_t combining_messages_;
  const size_t messages_;

  std::unique_ptr<Buffer> tensor_;
  std::byte* slots_[kAhead] = {};
  std::unique_ptr<Buffer> slot_buffers_[kAhead];
};

// Reduces by notes, or locally if this is the only rank.
Status ReduceSmall(const Reduced& reduced, double factor, Exchange& exchange) {
  const Reduction& reduction = reduced.reduction;
  const size_t count = reduced.count();
  std::byte* const accumulators =
      reduction.in_place()
          ? reduced.data()
          : exchange.Scratch(count * reduction.accumulator_bytes());
  reduction.Load(accumulators, reduced.data(), count, factor);
  Status status = ReduceEverywhere(reduction, accumulators, count, exchange);
  if (status.ok()) reduction.Store(reduced.data(), accumulators, count);
  return status;
}

// Pairwise reduce-scatter, then each rank gives its part of the result to all
// others. Only elements travel, so this also suits types with larger
// accumulators.
Status ReducePairwise(const Reduced& reduced, double factor,
                      Exchange& exchange) {
  const int rank = exchange.rank();
  const int world_size = exchange.world_size();
  const Blocks parts = CutParts({reduced.data(), reduced.count()}, world_size,
                                reduced.element_bytes());
  Status status =
      ReduceAndScatter(reduced.reduction, factor, parts, parts[rank], exchange);
  if (!status.ok()) return status;
  Moves moves;
  moves.WithEverybody(rank, world_size);
  moves.give.assign(world_size, parts[rank]);
  moves.take = parts;
  return MoveBlocks(moves, /*agreed=*/true, exchange);
}

}  // namespace

// Recursive doubling: in step k every rank exchanges its accumulators with the
// rank whose number differs in bit k, and both combine them; after log2(n)
// steps all have the result. If the size is not a power of two, each rank
// beyond the largest power first gives its part to another rank, and gets the
// result from it at the end. It takes the fewest steps, so it is best for small
// sizes. (Thakur, Rabenseifner, Gropp: Optimization of collective communication
// operations in MPICH, 2005.)
Status ReduceEverywhere(const Reduction& reduction, std::byte* accumulators,
                        size_t count, Exchange& exchange) {
  const int rank = exchange.rank();
  const int power = static_cast<int>(
      std::bit_floor(static_cast<unsigned>(exchange.world_size())));
  const size_t bytes = count * reduction.accumulator_bytes();

  if (rank >= power) {
    const int partner = rank - power;
    Status sent = exchange.SendNote(partner, accumulators, bytes);
    if (!sent.ok()) return sent;
    StatusOr<const std::byte*> result = exchange.ReceiveNote(partner);
    if (!result.ok()) return result.status();
    if (bytes > 0) std::memcpy(accumulators, *result, bytes);
    return OkStatus();
  }

  const bool has_extra = rank + power < exchange.world_size();
  if (has_extra) {
    StatusOr<const std::byte*> extra = exchange.ReceiveNote(rank + power);
    if (!extra.ok()) return extra.status();
    reduction.Combine(accumulators, accumulators, *extra, count);
  }
  for (int distance = 1; distance < power; distance *= 2) {
    const int partner = rank ^ distance;
    Status sent = exchange.SendNote(partner, accumulators, bytes);
    if (!sent.ok()) return sent;
    StatusOr<const std::byte*> other = exchange.ReceiveNote(partner);
    if (!other.ok()) return other.status();
    // The lower rank's operand comes first, so both get the same bits.
    const std::byte* const lower = partner < rank ? *other : accumulators;
    const std::byte* const higher = partner < rank ? accumulators : *other;
    reduction.Combine(accumulators, lower, higher, count);
  }
  reduction.Finish(accumulators, count, exchange.world_size());
  if (has_extra) {
    return exchange.SendNote(rank + power, accumulators, bytes);
  }
  return OkStatus();
}

Status AllReduce(const Collective& collective, Exchange& exchange) {
  const Tensor& tensor = collective.tensors[0];
  const Reduced reduced = {
      tensor, Reduction::Of(tensor.data_type(), collective.reduce_op)};
  const Reduction& reduction = reduced.reduction;
  const double factor = collective.factor;
  const Algorithm algorithm = SelectOnConnections(
      CollectiveKind::kAllReduce, exchange.world_size(), tensor.bytes());
  // Whether the accumulators fit into a note.
  const bool fits_notes =
      reduced.count() * reduction.accumulator_bytes() <= kNotePayloadBytesMax;
  if (exchange.world_size() == 1 ||
      (algorithm == Algorithm::kDoubling && fits_notes)) {
    exchange.set_algorithm(AlgorithmName(Algorithm::kDoubling));
    return ReduceSmall(reduced, factor, exchange);
  }
  if (algorithm != Algorithm::kRing || !reduction.in_place()) {
    exchange.set_algorithm(AlgorithmName(Algorithm::kPairwise));
    return ReducePairwise(reduced, factor, exchange);
  }
  exchange.set_algorithm(AlgorithmName(Algorithm::kRing));
  reduction.Load(reduced.data(), reduced.data(), reduced.count(), factor);
  return Ring(reduced, exchange).Run();
}

}  // namespace muster::dataplane::cpu
