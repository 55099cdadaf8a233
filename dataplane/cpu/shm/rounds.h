// The rounds of one collective, in which ranks check that they run the same.

#ifndef MUSTER_DATAPLANE_CPU_SHM_ROUNDS_H_
#define MUSTER_DATAPLANE_CPU_SHM_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dataplane/blocks.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/collectives/selection.h"
#include "dataplane/cpu/shm/regions.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/shm/streaming.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/reduction.h"
#include "glog/logging.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::shm {

using cpu::Algorithm;
using cpu::AlgorithmName;
using cpu::Blocks;
using cpu::Medium;
using cpu::MessageHeader;

// Summarizes what a rank has run, so that ranks can check that they ran the
// same.
struct History {
  // The digest of a header without its sequence number.
  static uint64_t ComputeDigest(const MessageHeader& header);

  // Adds a collective with this sequence number and digest.
  void Add(const MessageHeader& header, uint64_t sequence, uint64_t digest) {
    last = header;
    last.sequence = sequence;
    hash = (hash ^ digest) * kPrime;
  }
  // The group has symmetric memory from now on.
  void AddSymmetricMemory() { hash = (hash ^ kBasis) * kPrime; }

  // The constants of FNV-1a.
  static constexpr uint64_t kBasis = 14695981039346656037u;
  static constexpr uint64_t kPrime = 1099511628211u;

  uint64_t hash = 0;
  // The last collective.
  MessageHeader last = {};
};

// The addresses, in this process, of a buffer of one size on each rank.
struct RemoteBuffers {
  double GetFactor(int rank) const {
    return factors.empty() ? 1 : factors[rank];
  }

  // By rank. No factors: all are one.
  std::vector<std::byte*> data;
  std::vector<double> factors;
};

// The collectives that may copy from tensor to tensor.
enum class Scope : uint8_t {
  // Only if the tensors lie in symmetric memory.
  kInRegions,
  // Also, if ranks read each other's memory, for all readable tensors.
  kAnywhere,
};

// State shared by the collectives of a group.
struct ShmContext {
  RoundBuffer& round_buffer;
  cpu::Transport& transport;
  // Symmetric memory.
  RegionFinder regions;
  // Whether all ranks read each other's memory.
  bool reads_memory = false;
  // See Calibration.
  bool writes_past_caches = false;
  // The header of the running collective (a prepared one's, or `made`), and its
  // sequence number, which the header does not contain.
  const MessageHeader* header = nullptr;
  uint64_t sequence = 0;
  MessageHeader made = {};
  // Kept from one collective to the next.
  std::vector<std::byte> scratch = {};
  RemoteBuffers places = {};
  std::vector<const void*> operands = {};
  History history = {};
  // Whether the group had symmetric memory when the running collective began.
  // Its path depends on that.
  bool has_regions = false;
  // Collectives are steps of one whose header is `header`, which decides their
  // sizes. A reduction leaves accumulators in its output, and an output without
  // data is not taken.
  bool runs_steps = false;

  // Call it when a collective begins. Histories differ if ranks got their first
  // symmetric memory before different collectives.
  void Begin(const Regions& group) {
    if (has_regions || !group.any()) return;
    has_regions = true;
    history.AddSymmetricMemory();
  }

  void Say(const MessageHeader& what, uint64_t number) {
    header = &what;
    sequence = number;
  }
  // For a collective that is not prepared.
  void Say(const Collective& collective) {
    made = MessageHeader::Of(collective);
    Say(made, collective.sequence);
  }
};

// The rounds of one collective on this rank, on a RoundBuffer. Every rank
// begins its data with a description of what it runs; in the first round the
// ranks check that they run the same.
class Rounds {
 public:
  // `has_rows`: ranks that give data publish a row (see below) first.
  Rounds(ShmContext& context, const Collective& collective, bool has_rows)
      : rank_(context.round_buffer.rank()),
        world_size_(context.round_buffer.world_size()),
        // The header is that of this collective.
        element_bytes_(
            DataTypeBytes(static_cast<DataType>(context.header->data_type))),
        // No type has zero bytes.
        element_bits_(__builtin_ctzll(element_bytes_)),
        has_rows_(has_rows),
        context_(context),
        round_buffer_(context.round_buffer),
        collective_(collective),
        header_(*context.header),
        element_count_(header_.element_count) {}

 protected:
  // Shorter data goes to rings through the caches.
  static constexpr size_t kLongBytes = 4 << 10;
  // The bytes per round of data that goes in one direction: so few that others
  // read one piece while its rank writes the next.
  static constexpr size_t kPieceBytes = RoundBuffer::kPieceBytes;
  // The bytes per round if all ranks write, and then read: as many as possible,
  // because every round is waited for.
  size_t most_bytes() const { return round_buffer_.most_bytes(); }
  bool is_crowded() const { return round_buffer_.is_crowded(); }

  // Begins the next round, in which this rank publishes up to `bytes`. The
  // caller may write to payload() until Post.
  Status Open(size_t bytes) {
    ++opened_;
    const RoundBuffer::WaitResult outcome = round_buffer_.Open(bytes);
    return outcome == RoundBuffer::WaitResult::kDone ? OkStatus()
                                                     : ToStatus(outcome);
  }
  std::byte* payload() { return round_buffer_.shows(); }
  // Copies to payload(), from `offset` on.
  void Write(size_t offset, const void* from, size_t bytes) {
    if (bytes >= kLongBytes && context_.writes_past_caches) {
      CopyPastCaches(payload() + offset, from, bytes);
    } else if (bytes > 0) {
      CopyShort(payload() + offset, from, bytes);
    }
  }
  // Publishes the round.
  void Post() {
    // Constructed in place, without a copy.
    ::new (round_buffer_.head()) Head(HeadWith(element_count_));
    std::memcpy(round_buffer_.tail(), &context_.history.last,
                sizeof(MessageHeader));
    round_buffer_.Post();
  }

  // Waits until `peer` has published this round. In the first round, checks
  // that `peer` runs the same collective and gives this rank `count` elements.
  Status Await(int peer, uint64_t count) {
    // The common case needs no status.
    const bool is_there = round_buffer_.HasPublished(peer) &&
                          (!is_first() || peer == rank_ || IsSame(peer, count));
    return is_there ? OkStatus() : AwaitOther(peer, count);
  }
  // For collectives in which all ranks have one size.
  Status AwaitAll() {
    for (int peer = 0; peer < world_size_; ++peer) {
      // A rank need not wait for itself.
      if (peer == rank_) continue;
      Status status = Await(peer, element_count());
      if (!status.ok()) return status;
    }
    return OkStatus();
  }
  // Only for other ranks: this rank's own lines may be in the others' caches by
  // now.
  const std::byte* published(int peer) const {
    DCHECK_NE(peer, rank_);
    return round_buffer_.published(peer);
  }

  // A round in which all ranks publish the location of their `whole` in
  // symmetric memory. PublishLocation fills in this rank's entry of `places`,
  // AwaitRemoteBuffers the others'. False, on all ranks, if some rank's is
  // elsewhere.
  Status PublishLocation(const Block& whole, RemoteBuffers& places);
  StatusOr<bool> AwaitRemoteBuffers(RemoteBuffers& places);

  // A row holds the number of elements that its rank has for each rank. If that
  // is the same for each other rank, it is one word with kEven: short data
  // behind it is then in the slot's first cache line.
  static constexpr uint64_t kEven = uint64_t{1} << 63;
  // True for kinds in which a rank may give each rank another size.
  static constexpr bool HasRows(CollectiveKind kind) {
    return GivesEachItsOwn(kind);
  }
  bool has_rows() const { return has_rows_; }
  size_t row_bytes() const { return world_size_ * sizeof(uint64_t); }
  // Writes the whole row, even or not, so that data follows at row_bytes().
  void WriteRow(absl::Span<const Block> give);
  const uint64_t* GetCounts(int peer) const {
    return reinterpret_cast<const uint64_t*>(published(peer));
  }
  bool IsEven(int peer) const { return (GetCounts(peer)[0] & kEven) != 0; }
  uint64_t CountFor(int rank, int peer) const {
    return IsEven(peer) ? GetCounts(peer)[0] & ~kEven : GetCounts(peer)[rank];
  }

  // The location of a rank's data, for other ranks.
  struct SourceAddress {
    uint64_t address = 0;
    Regions::BufferLocation place = {};
  };
  // The way in which other ranks access it.
  enum class Access : uint64_t { kNone, kBySystem, kMapped };
  // Finds the location of `block`. kNone if it is not in scope `where`.
  Access FindSource(const Block& block, Scope where, SourceAddress& origin);

  // Another rank's data, as this rank accesses it.
  struct Source {
    // The address in the other process.
    uint64_t address = 0;
    // The address in this process; null if it is not mapped.
    std::byte* mapped = nullptr;
  };
  Source MakeSource(int peer, const SourceAddress& origin) {
    return {origin.address, origin.place.number == 0
                                ? nullptr
                                : regions().Locate(peer, origin.place)};
  }
  // Copies `bytes` at `offset` of the data of `peer` to `to`.
  Status Read(int peer, const Source& source, size_t offset, std::byte* to,
              size_t bytes);
  // A round without data. When it is over, all ranks have come here, and none
  // reads this rank's data any more.
  Status Meet();

  // The number of elements in `bytes`.
  size_t ElementsIn(size_t bytes) const { return bytes >> element_bits_; }

  // The next rank, cyclically.
  int After(int rank) const { return rank + 1 == world_size_ ? 0 : rank + 1; }
  // All other ranks, the next one first.
  absl::InlinedVector<int, 16> Others() const;

  // At least `bytes` of scratch, the same memory until the next call.
  std::byte* Scratch(size_t bytes);

  bool is_first() const { return opened_ == 1; }
  // The count that the first round publishes. A step publishes its header's.
  void set_element_count(uint64_t count) {
    if (!context_.runs_steps) element_count_ = count;
  }
  uint64_t element_count() const { return element_count_; }
  const ShmContext& context() const { return context_; }
  // The context's memory for these, to be filled in anew.
  RemoteBuffers& kept_places() { return context_.places; }
  std::vector<const void*>& kept_operands() { return context_.operands; }
  // The rank's number for errors.
  int RankInGroup(int rank) const {
    return context_.transport.RankInGroup(rank);
  }
  // The size of an element of a reduction's result.
  size_t ResultBytes(const Reduction& reduction) const {
    return context_.runs_steps ? reduction.accumulator_bytes() : element_bytes_;
  }
  // Combines `operands`, by rank, into `result`.
  void CombineAll(const Reduction& reduction, const Block& result,
                  absl::Span<const void* const> operands,
                  absl::Span<const double> factors) const {
    if (context_.runs_steps) {
      reduction.Accumulate(result.data, operands, factors, result.count);
    } else {
      reduction.CombineAll(result.data, operands, factors, result.count,
                           world_size_);
    }
  }
  RegionFinder& regions() { return context_.regions; }
  const Collective& collective() const { return collective_; }

  const int rank_;
  const int world_size_;
  // A power of two, and its exponent.
  const size_t element_bytes_;
  const int element_bits_;

 private:
  const bool has_rows_;

  // The head of published data: MessageHeader and the history. A rank that is
  // done as soon as it has published does not notice that others run another
  // collective; the history shows it in the next one. The tail is the last
  // collective that was run.
  //
  // It consists of words, which are written and compared in registers: a
  // processor stalls if it reads in one piece what was just written in several.
  struct Head {
    uint64_t sequence;
    uint64_t element_count;
    uint64_t what;
    uint64_t sizes_hash;
    uint64_t history;
  };
  // A rank publishes this in PublishLocation.
  struct Offer {
    Regions::BufferLocation place = {};
    double factor = 1;
  };
  static_assert(sizeof(Head) == RoundBuffer::kHeadBytes &&
                offsetof(Head, sequence) == offsetof(MessageHeader, sequence) &&
                offsetof(Head, element_count) ==
                    offsetof(MessageHeader, element_count) &&
                offsetof(Head, what) == offsetof(MessageHeader, root) &&
                offsetof(Head, sizes_hash) ==
                    offsetof(MessageHeader, sizes_hash) &&
                offsetof(Head, history) == sizeof(MessageHeader) &&
                sizeof(MessageHeader) == RoundBuffer::kTailBytes &&
                std::has_unique_object_representations_v<MessageHeader>);

  // This rank's head, with `element_count`.
  Head HeadWith(uint64_t element_count) const {
    uint64_t what = 0;
    std::memcpy(&what,
                reinterpret_cast<const std::byte*>(&header_) +
                    offsetof(MessageHeader, root),
                sizeof(what));
    return {.sequence = context_.sequence,
            .element_count = element_count,
            .what = what,
            .sizes_hash = header_.sizes_hash,
            .history = context_.history.hash};
  }
  // Await if the data has not come or is not the same.
  Status AwaitOther(int peer, uint64_t count);
  // Whether the head of `peer` in the first round matches this rank's. False in
  // a step.
  bool IsSame(int peer, uint64_t count) const {
    const Head ours = HeadWith(count);
    // Read in place: a copy would go through the stack.
    const auto& theirs =
        *reinterpret_cast<const Head*>(round_buffer_.published_head(peer));
    // Without a row it is another collective's, which the other words show.
    const uint64_t count_there =
        has_rows_ ? CountFor(rank_, peer) : theirs.element_count;
    return ((theirs.sequence ^ ours.sequence) |
            (count_there ^ ours.element_count) | (theirs.what ^ ours.what) |
            (theirs.sizes_hash ^ ours.sizes_hash) |
            (theirs.history ^ ours.history) | uint64_t{context_.runs_steps}) ==
           0;
  }
  // IsSame for a step, whose header has the count.
  bool IsSameStep(int peer) const;
  // The error for a head that does not match.
  Status DescribeDifference(int peer, uint64_t count) const;
  Status ToStatus(RoundBuffer::WaitResult outcome);

  ShmContext& context_;
  RoundBuffer& round_buffer_;
  const Collective& collective_;
  // This rank's header, and its count.
  const MessageHeader& header_;
  uint64_t element_count_;
  int opened_ = 0;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_ROUNDS_H_
