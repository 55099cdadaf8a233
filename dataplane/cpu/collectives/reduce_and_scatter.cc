#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "dataplane/cpu/collectives/schedules.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

constexpr size_t kSegmentBytesMax = 512 << 10;

// At least two, so that combining one segment overlaps receiving another,
// unless segments become too small for that to pay.
constexpr size_t kSegmentsMin = 2;

// The number of receives announced ahead. It bounds the scratch memory.
constexpr size_t kAhead = 4;

// Pairwise exchange: every rank sends each other rank that rank's part, and
// combines the parts that it receives with its own. It moves the same bytes as
// a ring, in n - 1 steps that do not wait for each other. (Thakur,
// Rabenseifner, Gropp: Optimization of collective communication operations in
// MPICH, 2005, calls it pairwise exchange.)
//
// A part is cut into segments. Segment s of the rank k behind arrives as
// message s (n - 1) + k - 1 and is added to the accumulators of segment s: this
// rank's own segment first, then the others in the order of k. The parts of one
// rank have one size on all ranks, so they arrive on one path. All sends are
// posted before the first wait.
class Scatterer {
 public:
  Scatterer(const Reduction& reduction, double factor,
            absl::Span<const Block> inputs, Block output, Exchange& exchange)
      : reduction_(reduction),
        inputs_(inputs),
        output_(output),
        exchange_(exchange),
        rank_(exchange.rank()),
        world_size_(exchange.world_size()),
        element_bytes_(exchange.element_bytes()),
        segments_(CountSegments(output)),
        messages_(segments_ * (world_size_ - 1)),
        factors_(world_size_, factor),
        sent_(world_size_) {}

  Status Run() {
    Status status = Agree();
    if (!status.ok()) return status;
    PrepareBuffers();
    for (size_t i = 0; i < std::min(kAhead, messages_); ++i) {
      status = Announce(i);
      if (!status.ok()) return status;
    }
    status = SendAll();
    for (size_t i = 0; i < messages_ && status.ok(); ++i) {
      status = Take(i);
      if (status.ok() && i + kAhead < messages_) status = Announce(i + kAhead);
    }
    for (int peer = 0; peer < world_size_ && status.ok(); ++peer) {
      if (peer == rank_) continue;
      const size_t sends = CountSegments(inputs_[peer]);
      for (size_t i = 0; i < sends && status.ok(); ++i) {
        status = sent_[peer]->WaitSend(peer);
      }
    }
    return status;
  }

 private:
  int Behind(size_t message) const {
    const int distance = static_cast<int>(message % (world_size_ - 1)) + 1;
    return (rank_ - distance + world_size_) % world_size_;
  }

  size_t CountSegments(const Block& block) const {
    const size_t bytes = block.count * element_bytes_;
    if (bytes <= kNotePayloadBytesMax) return block.count > 0 ? 1 : 0;
    return std::max(kSegmentsMin, ChunksFor(bytes, kSegmentBytesMax));
  }

  // Exchanges factors with all other ranks.
  Status Agree() {
    const double own = factors_[rank_];
    for (int distance = 1; distance < world_size_; ++distance) {
      const int peer = (rank_ + distance) % world_size_;
      Status sent =
          exchange_.SendNote(peer, &own, sizeof(own), inputs_[peer].count);
      if (!sent.ok()) return sent;
    }
    for (int distance = 1; distance < world_size_; ++distance) {
      const int peer = (rank_ - distance + world_size_) % world_size_;
      StatusOr<const std::byte*> payload =
          exchange_.ReceiveNote(peer, output_.count);
      if (!payload.ok()) return payload.status();
      std::memcpy(&factors_[peer], *payload, sizeof(factors_[peer]));
    }
    return OkStatus();
  }

  void PrepareBuffers() {
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_ || inputs_[peer].count == 0) continue;
      const size_t bytes = inputs_[peer].count * element_bytes_;
      sent_[peer] = exchange_.Wrap(inputs_[peer].data, bytes);
    }
    if (segments_ == 0) return;
    const size_t segment_count = output_.count / segments_ + 1;
    const size_t slot_bytes = segment_count * element_bytes_;
    const size_t accumulators_bytes =
        reduction_.in_place() ? 0
                              : segment_count * reduction_.accumulator_bytes();
    // The accumulators come first: they need the larger alignment.
    std::byte* scratch =
        exchange_.Scratch(accumulators_bytes + kAhead * slot_bytes);
    accumulators_ = scratch;
    for (size_t i = 0; i < kAhead; ++i) {
      slots_[i] = scratch + accumulators_bytes + i * slot_bytes;
      slot_buffers_[i] = exchange_.Wrap(slots_[i], slot_bytes);
    }
  }

  Status Announce(size_t i) {
    const Range segment =
        CutPart(output_.count, i / (world_size_ - 1), segments_);
    return slot_buffers_[i % kAhead]->Receive(Behind(i), 0,
                                              segment.count * element_bytes_);
  }

  // Sends segments in the order in which receivers wait for them.
  Status SendAll() {
    size_t segments_max = 0;
    for (const Block& input : inputs_) {
      segments_max = std::max(segments_max, CountSegments(input));
    }
    for (size_t i = 0; i < segments_max; ++i) {
      for (int distance = 1; distance < world_size_; ++distance) {
        const int peer = (rank_ + distance) % world_size_;
        const Block& input = inputs_[peer];
        const size_t segments = CountSegments(input);
        if (i >= segments) continue;
        const Range segment = CutPart(input.count, i, segments);
        Status sent = sent_[peer]->Send(peer, segment.first * element_bytes_,
                                        segment.count * element_bytes_);
        if (!sent.ok()) return sent;
      }
    }
    return OkStatus();
  }

  Status Take(size_t i) {
    const int peer = Behind(i);
    const size_t step = i % (world_size_ - 1);
    const size_t index = i / (world_size_ - 1);
    Status received = slot_buffers_[i % kAhead]->WaitReceive(peer);
    if (!received.ok()) return received;
    const Block result = CutPart(output_, index, segments_, element_bytes_);
    std::byte* const accumulators =
        reduction_.in_place() ? result.data : accumulators_;
    if (step == 0) {
      const Block own =
          CutPart(inputs_[rank_], index, segments_, element_bytes_);
      reduction_.Load(accumulators, own.data, own.count, factors_[rank_]);
    }
    reduction_.Add(accumulators, slots_[i % kAhead], result.count,
                   factors_[peer]);
    if (step + 2 == static_cast<size_t>(world_size_)) {
      reduction_.Finish(accumulators, result.count, world_size_);
      reduction_.Store(result.data, accumulators, result.count);
    }
    return OkStatus();
  }

  const Reduction& reduction_;
  const absl::Span<const Block> inputs_;
  const Block output_;
  Exchange& exchange_;
  const int rank_;
  const int world_size_;
  const size_t element_bytes_;
  // The segments of this rank's part, and the messages that arrive for it.
  const size_t segments_;
  const size_t messages_;

  std::vector<double> factors_;
  std::vector<std::unique_ptr<Buffer>> sent_;
  std::byte* accumulators_ = nullptr;
  std::byte* slots_[kAhead] = {};
  std::unique_ptr<Buffer> slot_buffers_[kAhead];
};

}  // namespace

Status ReduceAndScatter(const Reduction& reduction, double factor,
                        absl::Span<const Block> inputs, Block output,
                        Exchange& exchange) {
  return Scatterer(reduction, factor, inputs, output, exchange).Run();
}

}  // namespace muster::dataplane::cpu
