// The rounds of one collective, in which ranks check that they run the same.

#ifndef MUSTER_DATAPLANE_CPU_SHM_ROUNDS_H_
#define MUSTER_DATAPLANE_CPU_SHM_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "dataplane/blocks.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/shm/regions.h"
#include "dataplane/cpu/shm/ring_writer.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/releasable_lock.h"
#include "glog/logging.h"

namespace muster::dataplane::shm {

using cpu::Blocks;
using cpu::MessageHeader;

// Summarizes what a rank has run, so that ranks can check that they ran the
// same.
struct History {
  // Of what a header says, but for the number.
  static uint64_t DigestOf(const MessageHeader& header);

  // Of one more, with this number and its digest.
  void Add(const MessageHeader& header, uint64_t sequence, uint64_t digest) {
    last = header;
    last.sequence = sequence;
    hash = (hash ^ digest) * kPrime;
  }
  // The group has symmetric memory from now on.
  void AddSymmetricMemory() { hash = (hash ^ kBasis) * kPrime; }

  // Those of FNV-1a.
  static constexpr uint64_t kBasis = 14695981039346656037u;
  static constexpr uint64_t kPrime = 1099511628211u;

  uint64_t hash = 0;
  // The last one.
  MessageHeader last = {};
};

// Where all ranks have something of one size.
struct RemoteBuffers {
  double FactorOf(int rank) const {
    return factors.empty() ? 1 : factors[rank];
  }

  // By rank: here, and the factor of each; empty: all are one.
  std::vector<std::byte*> data;
  std::vector<double> factors;
};

// Which collectives go from tensor to tensor.
enum class Scope : uint8_t {
  // Those whose tensors lie in symmetric memory.
  kInRegions,
  // Those, and of ranks that read each other's memory all whose tensors can be
  // read at all.
  kAnywhere,
};

// What the collectives of a group work with.
struct ShmContext {
  RoundBuffer& round_buffer;
  cpu::Transport& transport;
  // Symmetric memory.
  RegionFinder regions;
  // All ranks read each other's memory.
  bool reads_memory = false;
  // What all ranks say that they run, and its number, which does not stand in
  // `header`: a plan's, or `made`.
  const MessageHeader* header = nullptr;
  uint64_t sequence = 0;
  MessageHeader made = {};
  // Kept from one collective to the next.
  std::vector<std::byte> scratch = {};
  RemoteBuffers places = {};
  std::vector<const void*> operands = {};
  History history = {};
  RingWriter writer = {};
  // What the round buffer's first rank was heard saying beside the collective
  // that runs, and says: less than kHint. It stands in the `step` of the last
  // one that it has run, where no step is that much. Beside what has fewer
  // bytes nothing is said.
  static constexpr uint8_t kHint = 0x80;
  static constexpr size_t kHintBytesMin = 256 << 10;
  std::optional<uint8_t> hint = std::nullopt;
  void SetHint(uint8_t word) {
    history.last.step = kHint | word;
    hint = word;
  }
  // Of the collective that runs, if its caller has it still: see Backend::Run.
  ReleasableLock* order = nullptr;
  // The group had symmetric memory when the collective that runs began. Which
  // way it goes depends on that.
  bool has_regions = false;

  // A collective begins. Ranks for which the first symmetric memory came before
  // another one than for others have another history.
  void Begin(const Regions& group) {
    if (has_regions || !group.any()) return;
    has_regions = true;
    history.AddSymmetricMemory();
  }

  void Say(const MessageHeader& what, uint64_t number) {
    header = &what;
    sequence = number;
  }
  // Of a collective without a plan.
  void Say(const Collective& collective) {
    made = MessageHeader::Of(collective);
    Say(made, collective.sequence);
  }

  void LetOthersStart() {
    if (order != nullptr) std::exchange(order, nullptr)->Release();
  }
  // It is about to wait, or has waited: does what is left for then, while what
  // it waits for comes, but lets others start later. Where there are fewer
  // processors than ranks that is left for long waits: nothing comes meanwhile,
  // and mostly a wait takes no longer than that.
  void TellOfWait() {
    if (order == nullptr) return;
    if (round_buffer.is_crowded()) {
      order->NoteWait();
    } else {
      order->CallLast();
    }
  }
};

// The rounds of one collective on this rank, on a RoundBuffer. Every rank
// begins its data with a description of what it runs; in the first round the
// ranks check that they run the same.
class Rounds {
 public:
  // `has_rows`: who gives something shows a row (below) first.
  Rounds(ShmContext& context, const Collective& collective, bool has_rows)
      : rank_(context.round_buffer.rank()),
        world_size_(context.round_buffer.world_size()),
        // What was said is of this collective.
        element_bytes_(
            DataTypeBytes(static_cast<DataType>(context.header->data_type))),
        // There is no type of none.
        element_bits_(__builtin_ctzll(element_bytes_)),
        has_rows_(has_rows),
        context_(context),
        round_buffer_(context.round_buffer),
        collective_(collective),
        header_(*context.header),
        element_count_(header_.element_count) {}

 protected:
  // What a rank shows in a round of what goes in one direction: so small a
  // piece that others read one while it writes the next.
  static constexpr size_t kPieceBytes = RoundBuffer::kPieceBytes;
  // And where all ranks write at a time, and then read: as much as it can, as
  // each round is waited for, longest where processors are fewer than ranks.
  size_t most_bytes() const { return round_buffer_.most_bytes(); }

  // Begins the next round, in which this rank shows up to `bytes`. Then
  // payload() may be written, until Post.
  Status Open(size_t bytes) {
    ++opened_;
    const RoundBuffer::Outcome outcome = round_buffer_.Open(bytes);
    return outcome == RoundBuffer::Outcome::kDone ? OkStatus()
                                                  : StatusOf(outcome);
  }
  std::byte* payload() { return round_buffer_.shows(); }
  // Copies to payload(), from `offset` on.
  void Write(size_t offset, const void* from, size_t bytes) {
    context_.writer.Copy(payload() + offset, from, bytes);
  }
  static constexpr size_t kManyBytes = std::numeric_limits<size_t>::max();
  // `rest`: how many bytes this rank copies or combines between this and the
  // end of the collective, or the next round; if few, other threads may start
  // theirs when it waits or has ended.
  void Post(size_t rest = kManyBytes) {
    // Written there at once, and not copied there.
    ::new (round_buffer_.head()) Head(HeadWith(element_count_));
    std::memcpy(round_buffer_.tail(), &context_.history.last,
                sizeof(MessageHeader));
    round_buffer_.Post();
    if (rest > kFewBytes) context_.LetOthersStart();
  }
  // Before what may take longer than was said.
  void LetOthersStart() { context_.LetOthersStart(); }

  // Waits until there is what `peer` shows. In the first round: and sees that
  // it is of the same collective, in which it gives this rank `count` elements.
  Status Await(int peer, uint64_t count) {
    // As a rule: what is not so needs a status.
    const bool is_there = round_buffer_.HasPublished(peer) &&
                          (!is_first() || peer == rank_ || IsSame(peer, count));
    return is_there ? OkStatus() : AwaitOther(peer, count);
  }
  // Of a collective in which all have one size.
  Status AwaitAll() {
    for (int peer = 0; peer < world_size_; ++peer) {
      // It sees its own.
      if (peer == rank_) continue;
      Status status = Await(peer, element_count());
      if (!status.ok()) return status;
    }
    return OkStatus();
  }
  // After Await of `peer`: hears what it says, if it is the first rank.
  void Hear(int peer) {
    if (peer != 0 || rank_ == 0) return;
    MessageHeader last;
    std::memcpy(&last, round_buffer_.published_tail(peer), sizeof(last));
    if ((last.step & ShmContext::kHint) == 0) return;
    context_.hint = last.step & ~ShmContext::kHint;
  }
  // Of another rank: what this one has shown is with the others by now, and
  // would have to come back.
  const std::byte* published(int peer) const {
    DCHECK_NE(peer, rank_);
    return round_buffer_.published(peer);
  }

  // A round in which all show where in symmetric memory their `whole` is, and
  // fill in `places`: this rank's, and then, when they have come, those of all
  // others. False, on all ranks: not all of them have it there. `rest`: see
  // Post.
  Status PublishLocation(const Block& whole, size_t rest,
                         RemoteBuffers& places);
  StatusOr<bool> AwaitRemoteBuffers(RemoteBuffers& places);

  // A row: how many elements its rank has for each rank. Or one word, with
  // kEven, where that is the same for each, perhaps but for itself: what comes
  // after it is in the line of the cache that the note begins with, then, if
  // that is short.
  static constexpr uint64_t kEven = uint64_t{1} << 63;
  // Of collectives in which what a rank gives to each need not be of one size.
  static constexpr bool HasRows(CollectiveKind kind) {
    return GivesEachItsOwn(kind);
  }
  bool has_rows() const { return has_rows_; }
  size_t row_bytes() const { return world_size_ * sizeof(uint64_t); }
  // All of it, also if it is even: what follows stands at row_bytes().
  void WriteRow(absl::Span<const Block> give);
  const uint64_t* RowOf(int peer) const {
    return reinterpret_cast<const uint64_t*>(published(peer));
  }
  bool IsEven(int peer) const { return (RowOf(peer)[0] & kEven) != 0; }
  uint64_t CountFor(int rank, int peer) const {
    return IsEven(peer) ? RowOf(peer)[0] & ~kEven : RowOf(peer)[rank];
  }

  // Where what a rank gives is, for the others.
  struct SourceAddress {
    uint64_t address = 0;
    Regions::Place place = {};
  };
  // How they get at it.
  enum class Access : uint64_t { kNone, kBySystem, kMapped };
  // Finds where `block` is. kNone: not `where` it must be.
  Access FindSource(const Block& block, Scope where, SourceAddress& origin);

  // What a rank gives another one, as that gets at it.
  struct Source {
    // In the other process.
    uint64_t address = 0;
    // Here; null if it is not.
    std::byte* mapped = nullptr;
  };
  Source SourceOf(int peer, const SourceAddress& origin) {
    return {origin.address, origin.place.number == 0
                                ? nullptr
                                : regions().Locate(peer, origin.place)};
  }
  // From `offset` bytes behind where what `peer` gives begins.
  Status Read(int peer, const Source& source, size_t offset, std::byte* to,
              size_t bytes);
  // A round in which nothing is shown: when it is over all have come as far as
  // this, and nobody reads any more what this rank gave. `rest`: see Post.
  Status Meet(size_t rest = kManyBytes);

  // How many there are in so many bytes.
  size_t ElementsIn(size_t bytes) const { return bytes >> element_bits_; }

  // The next one, round the ring.
  int After(int rank) const { return rank + 1 == world_size_ ? 0 : rank + 1; }
  // All other ranks, the next one first.
  absl::InlinedVector<int, 16> Others() const;

  // At least `bytes` of scratch, the same memory until the next call.
  std::byte* Scratch(size_t bytes);

  bool is_first() const { return opened_ == 1; }
  // It is said to the others in the first round.
  void set_element_count(uint64_t count) { element_count_ = count; }
  uint64_t element_count() const { return element_count_; }
  const ShmContext& context() const { return context_; }
  // Those of the context, for who fills them in anew.
  RemoteBuffers& kept_places() { return context_.places; }
  std::vector<const void*>& kept_operands() { return context_.operands; }
  // What errors call it.
  int RankInGroup(int rank) const {
    return context_.transport.RankInGroup(rank);
  }
  RegionFinder& regions() { return context_.regions; }
  const Collective& collective() const { return collective_; }

  const int rank_;
  const int world_size_;
  // A power of two, and of which.
  const size_t element_bytes_;
  const int element_bits_;

 private:
  // What is copied or combined in some microseconds. To let the order of
  // collectives go and have it again, and write the flight recorder's entry in
  // two steps, takes some tenths of one.
  static constexpr size_t kFewBytes = 32 << 10;

  const bool has_rows_;

  // The head of what is shown: MessageHeader, and the history of what was run
  // before, as ranks that are done with a collective when they have shown what
  // they have do not see in it that others run another one. Its tail is what
  // was run last.
  //
  // In words, which are in registers when it is written and compared: some come
  // from where they have just been written, and a processor waits for what is
  // read in one piece and was not written in one.
  struct Head {
    uint64_t sequence;
    uint64_t element_count;
    uint64_t what;
    uint64_t sizes_hash;
    uint64_t history;
  };
  // A rank publishes this in PublishLocation.
  struct Offer {
    Regions::Place place = {};
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

  // This rank's, with so many elements.
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
  // Of what is not there yet, or not the same.
  Status AwaitOther(int peer, uint64_t count);
  // `peer` shows what it should in the first round.
  bool IsSame(int peer, uint64_t count) const {
    const Head ours = HeadWith(count);
    // As it was written: a copy would go to the stack and come back from there.
    const auto& theirs =
        *reinterpret_cast<const Head*>(round_buffer_.published_head(peer));
    // Where there is none it is of something else, which shows as well.
    const uint64_t count_there =
        has_rows_ ? CountFor(rank_, peer) : theirs.element_count;
    return ((theirs.sequence ^ ours.sequence) |
            (count_there ^ ours.element_count) | (theirs.what ^ ours.what) |
            (theirs.sizes_hash ^ ours.sizes_hash) |
            (theirs.history ^ ours.history)) == 0;
  }
  // Of what is not the same.
  Status DifferenceOf(int peer, uint64_t count) const;
  Status StatusOf(RoundBuffer::Outcome outcome);

  ShmContext& context_;
  RoundBuffer& round_buffer_;
  const Collective& collective_;
  // What this rank says of itself, with this count.
  const MessageHeader& header_;
  uint64_t element_count_;
  int opened_ = 0;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_ROUNDS_H_
