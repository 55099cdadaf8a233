// The shared memory in which the ranks of a host publish data to each other in
// rounds. It is the only synchronization of their collectives.

#ifndef MUSTER_DATAPLANE_CPU_SHM_ROUND_BUFFER_H_
#define MUSTER_DATAPLANE_CPU_SHM_ROUND_BUFFER_H_

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "dataplane/cpu/transport/spin_wait.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {

// Properties of a RoundBuffer, the same on all ranks.
struct RoundBufferTraits {
  // The host has fewer processors than ranks. Waiters then yield at once.
  bool is_crowded = false;
  // The size of each rank's ring: a power of two, at least kRingBytesMin.
  static constexpr size_t kRingBytesMin = 512 << 10;
  size_t ring_bytes = kRingBytesMin;

  // The most that a rank can publish in a round. The ring must have room for
  // two rounds, each with skipped bytes in front.
  constexpr size_t most_bytes() const { return ring_bytes / 4; }
};

// RoundBuffer is shared memory in which the ranks of a group publish data to
// each other, in rounds that all of them go through. A round of a rank:
//
//   Open     waits until the memory that it will overwrite is no longer read
//   Post     publishes what it has written
//   Await    waits until another rank has published its own, and returns it
//
// Each rank has kSlots slots, used one after the other, one per round, and a
// ring. Short data lies in the slot. Longer data lies in the ring, one piece
// behind the other, and the slot says where. Posting round t also states that
// the rank has read all that it wanted of round t - 1 and before. So data
// written in round u may be overwritten when all others have posted round u +
// 1. If every rank awaits every other, that is long past: a round is then one
// synchronization, without a closing one. A rank that awaits nobody, such as
// the root of a broadcast, runs up to kSlots - 1 rounds ahead of the others, or
// as far as its ring reaches.
//
// The ring is larger than this requires: larger than a processor's own cache.
// Data that was read is in the reader's cache. A writer that soon reuses its
// memory takes it away line by line; a MiB or two later the data is in the
// cache that both share, which is four times as fast (MEASUREMENTS.md).
//
// The number of the round stands in the slot, in front of the data: if the data
// is small, a reader gets both in one cache line. The number is written last,
// with release, and read first, with acquire; slots and rings need no other
// memory ordering, on any processor.
//
// If processors share no cache, one line takes as long to arrive as a whole
// small collective otherwise. So data that fits in one line is prefetched: by
// its writer, after it has posted the round before, and by its reader, three
// rounds ahead, if the reader did not have to wait for this one. A rank that
// publishes a few lines itself prefetches another rank's next lines as soon as
// the first has come.
//
// A waiting thread spins for a while, yielding its processor to any thread that
// can use it, and then sleeps until it is woken (futex(2)). It marks itself as
// sleeping and checks again before it sleeps. A rank checks for sleepers after
// it has posted: first their number, usually zero, which is one line to read
// for any number of ranks. Posts are frequent and urgent, so there is no fence
// between the two steps, and a processor may hold back the post for some
// microseconds while it reads the marks. Therefore a sleep begins with a nap of
// kNapTime, after which the rank checks once more; it stays marked as sleeping
// all the while. A rank that did not see the mark had posted before, and its
// post is visible after the nap; a rank that posts later sees the mark and
// wakes the sleeper.
//
// Where ranks run is the system's choice. Beside programs that compute on all
// processors it may leave two ranks on one, where they alternate: so if yields
// take long, a rank sleeps at once when the rank that it waits for was last
// seen waiting on the same processor (MEASUREMENTS.md).
//
// Used by one thread at a time, except for Wake.
class RoundBuffer {
 public:
  enum class WaitResult {
    kDone,
    // Wake was called.
    kWoken,
    // The awaited rank has left.
    kLeft,
    // This rank has no memory for its ring.
    kNoRing,
  };

  // The most that a rank can publish in a round; kPieceBytes with the smallest
  // ring.
  size_t most_bytes() const { return traits_.most_bytes(); }
  static constexpr size_t kPieceBytes = RoundBufferTraits().most_bytes();
  // The most bytes that are published in the slot itself.
  static constexpr size_t kSlotBytes = 688;
  // If ranks share a processor, a rank that awaits nobody runs kSlots - 1
  // rounds ahead before the others get it (MEASUREMENTS.md).
  static constexpr uint64_t kSlots = 32;
  // The sizes of the head, in front of the data, which is always read, and the
  // tail, behind it, which is read only if needed.
  static constexpr size_t kHeadBytes = 40;
  static constexpr size_t kTailBytes = 32;

  // The size of a cache line.
  static constexpr size_t kLineBytes = 64;
  // `bytes`, rounded up to whole lines.
  static constexpr size_t WholeLines(size_t bytes) {
    return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  }

  // The nap that begins a sleep: some hundred times as long as processors hold
  // back stores. (C++ promises visibility "within a reasonable amount of
  // time".) It costs a longer sleep one more wake-up.
  static constexpr std::chrono::milliseconds kNapTime{1};

  // The size of each ring that is fastest for `world_size` ranks.
  static size_t RingBytesFor(int world_size);
  // The size of the memory for `world_size` ranks with such rings, and of its
  // part in front of the rings.
  static size_t BytesFor(int world_size, size_t ring_bytes);
  static size_t SlotsBytesFor(int world_size);

  // Makes [offset, offset + bytes) of the memory ready.
  using Reserve = std::function<Status(size_t offset, size_t bytes)>;

  // `memory` has the size BytesFor, is aligned to kLineBytes, was zero before
  // the first rank used it, and must live longer. `waits_for` is called with
  // the awaited rank in longer waits, and with -1 afterwards. `reserve` is
  // called for this rank's ring before its first use; null: it is ready. Tests
  // pass another `yield`.
  RoundBuffer(void* memory, int rank, int world_size,
              const RoundBufferTraits& traits,
              std::function<void(int)> waits_for, Reserve reserve = nullptr,
              cpu::Yielding::Yield yield = sched_yield);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  bool is_crowded() const { return traits_.is_crowded; }

  // Begins this rank's next round, in which it publishes up to `bytes`. After
  // kDone the caller may write to shows(), head() and tail(). After any other
  // outcome, here or in Await, no call may begin.
  WaitResult Open(size_t bytes);
  std::byte* shows() { return own_bytes_; }
  // Aligned to 8.
  std::byte* head() { return own_slot_->head; }
  std::byte* tail() { return own_slot_->tail; }

  // Publishes the round.
  void Post();

  // Waits until `peer` has published this round. Then published() and the
  // others return its data, valid until this rank posts the next round.
  WaitResult Await(int peer) {
    return HasPublished(peer) ? WaitResult::kDone : AwaitUnseen(peer, round_);
  }
  // Whether `peer` has published this round. Checks once, without waiting.
  bool HasPublished(int peer);
  const std::byte* published(int peer) const;
  const std::byte* published_head(int peer) const { return GetSlot(peer).head; }
  const std::byte* published_tail(int peer) const { return GetSlot(peer).tail; }

  // The rank of kLeft.
  int left_peer() const { return left_peer_; }
  // The error of kNoRing.
  const Status& ring_status() const { return ring_status_; }

  // Announces that this rank posts nothing more, and whether because of a
  // failure. Wakes the ranks that wait for it. From the thread that uses this
  // object, or when there is none. Only the first call counts.
  void Leave(bool has_failed);

  // A rank that has left because of a failure, or -1. It may have posted
  // everything that others needed.
  int FindFailed() const;

  // Makes this rank's waits, current and later, return kWoken. From any thread.
  void Wake();
  bool is_woken() const { return woken_.load(std::memory_order_acquire); }

 private:
  // The processor prefetches further lines itself while these are copied.
  static constexpr size_t kLinesAhead = 3;
  struct alignas(kLineBytes) Slot {
    // The round times two, plus one if the data is in the ring. `bytes` then
    // begins with its offset there.
    std::atomic<uint64_t> posted;
    std::byte head[kHeadBytes];
    std::byte bytes[kSlotBytes];
    std::byte tail[kTailBytes];
  };
  static_assert(offsetof(Slot, head) % sizeof(uint64_t) == 0);
  // The state for waking a rank.
  struct alignas(kLineBytes) Bell {
    std::atomic<uint32_t> rings;
    // The rank for which it sleeps, plus 1; zero: it is awake.
    std::atomic<uint32_t> sleeps_for;
    std::atomic<uint32_t> has_left;
    // The processor on which it waited last, plus 1; zero: none yet.
    std::atomic<uint32_t> processor;
    // Written by other ranks: one that has left because of a failure, plus 1;
    // zero: none.
    std::atomic<uint32_t> failed_peer;
  };
  struct alignas(kLineBytes) RankSlots {
    Bell bell;
    Slot slots[kSlots];
  };
  // State shared by all ranks.
  struct alignas(kLineBytes) Common {
    // The number of ranks marked as sleeping.
    std::atomic<uint32_t> sleepers;
  };

  // False if there is no memory for the ring.
  [[gnu::noinline, gnu::cold]] bool ReserveRing();
  // The place of the next `bytes` in this rank's ring. Raises `needed` to the
  // round that all others must have posted before they may be written.
  std::byte* TakeOfRing(size_t bytes, uint64_t& needed);
  std::byte* GetRing(int rank) const {
    return rings_ + rank * traits_.ring_bytes;
  }

  // Takes the slot's first line from the ranks that have read it. (On x86-64
  // GCC's own function compiles to a plain prefetch, which does not. Processors
  // without prefetchw ignore it.)
  static void PrefetchToWrite(const Slot& slot) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(slot.posted));
#else
    __builtin_prefetch(&slot, /*rw=*/1);
#endif
  }

  Slot& GetSlot(int rank, uint64_t round) const {
    return places_[rank].slots[round % kSlots];
  }
  // The slot of `rank` for this rank's current round. Computed from this rank's
  // own slot, which takes half as long.
  Slot& GetSlot(int rank) const {
    return *reinterpret_cast<Slot*>(
        reinterpret_cast<std::byte*>(own_slot_) +
        (rank - rank_) * static_cast<ptrdiff_t>(sizeof(RankSlots)));
  }
  // True also if the slot holds a later round.
  static bool HasPosted(const Slot& slot, uint64_t round) {
    return slot.posted.load(std::memory_order_acquire) >= round * 2;
  }
  bool HasPosted(int peer, uint64_t round) const {
    return HasPosted(GetSlot(peer, round), round);
  }
  // Call it when the first line of a peer's `slot` has come. If this rank
  // publishes a few lines, the peer mostly does, too: prefetches them before
  // the caller has read in the first line how many it needs.
  void AskForMore(const Slot& slot) const {
    if (is_in_line_ || is_in_ring_) return;
    const auto* const line = reinterpret_cast<const std::byte*>(&slot);
    for (size_t i = 1; i <= kLinesAhead; ++i) {
      __builtin_prefetch(line + i * kLineBytes);
    }
  }
  WaitResult AwaitUnseen(int peer, uint64_t round);
  // Waits until all ranks have posted `round`, which this rank has.
  WaitResult AwaitBehind(uint64_t round);
  // Finds a round beyond `round` that `peer` has already posted.
  void SeeAhead(int peer, uint64_t round);
  WaitResult AwaitSlowly(int peer, uint64_t round);
  // Whether a rank that has not posted `round` may need this processor.
  bool IsWantedHere(uint64_t round);
  // Whether the wait is over, and its `outcome`.
  bool IsOver(int peer, uint64_t round, WaitResult& outcome);
  // Announces that this rank is on `processor`.
  void SayWhere(int processor);
  // The processor that its bell names, or -1.
  int GetProcessor(int rank) const {
    return static_cast<int>(
               places_[rank].bell.processor.load(std::memory_order_relaxed)) -
           1;
  }
  // Sleeps until this rank is woken or the wait is over.
  void Sleep(int peer, uint64_t round);
  // Sleeps for `time`, in spite of signals, or until this rank's bell has rung
  // since `rings` was read.
  bool IsRungWithin(std::chrono::nanoseconds time, uint32_t rings);
  void Ring(int peer);
  // Wakes the ranks that sleep for this rank.
  void RingSleepers();

  RankSlots* const places_;
  RankSlots& own_;
  const int rank_;
  const int world_size_;
  // Behind all places in the memory.
  Common& common_;
  // Behind `common_`, on pages without slots.
  std::byte* const rings_;
  const RoundBufferTraits traits_;
  const std::function<void(int)> waits_for_;
  // Null after it was called.
  Reserve reserve_;
  Status ring_status_;

  // The round that this rank is in, from 1.
  uint64_t round_ = 0;
  // Its slot for that round, and its data, in the slot or in the ring.
  Slot* own_slot_ = nullptr;
  std::byte* own_bytes_ = nullptr;
  bool is_in_ring_ = false;
  // All data is in the slot's first line.
  bool is_in_line_ = false;
  // The bytes taken from the ring since the beginning, and, by slot, at the
  // beginning of its round.
  uint64_t taken_ = 0;
  uint64_t taken_before_[kSlots] = {};
  // By rank: the last round that this rank has seen posted.
  std::vector<uint64_t> seen_;
  // A round that this rank has seen posted by all.
  uint64_t seen_of_all_ = 0;
  int left_peer_ = -1;
  // For waits that outlast the quick spins.
  cpu::SpinBudget spin_budget_;
  cpu::Yielding yielding_;
  std::atomic<bool> woken_{false};
};

// Inline, because every small collective calls these.

inline RoundBuffer::WaitResult RoundBuffer::Open(size_t bytes) {
  ++round_;
  // The round that all others must have posted, and so read the data before it.
  uint64_t needed = round_ < kSlots ? 0 : round_ - kSlots + 1;
  own_slot_ = &own_.slots[round_ % kSlots];
  taken_before_[round_ % kSlots] = taken_;
  is_in_ring_ = bytes > kSlotBytes;
  is_in_line_ = offsetof(Slot, bytes) + bytes <= kLineBytes;
  if (is_in_ring_ && reserve_ != nullptr && !ReserveRing()) {
    return WaitResult::kNoRing;
  }
  own_bytes_ = is_in_ring_ ? TakeOfRing(bytes, needed) : own_slot_->bytes;
  return needed <= seen_of_all_ ? WaitResult::kDone : AwaitBehind(needed);
}

inline bool RoundBuffer::HasPublished(int peer) {
  uint64_t& seen = seen_[peer];
  if (seen >= round_) return true;
  const Slot& slot = GetSlot(peer);
  if (!HasPosted(slot, round_)) return false;
  seen = round_;
  AskForMore(slot);
  // A peer that is ahead has posted round_ + 3, too; the rounds before were
  // prefetched. If it is not ahead, usually nothing moves: this processor still
  // has the line from its last use.
  __builtin_prefetch(&GetSlot(peer, round_ + 3));
  return true;
}

inline void RoundBuffer::Post() {
  if (is_in_ring_) {
    const uint64_t offset = own_bytes_ - GetRing(rank_);
    std::memcpy(own_slot_->bytes, &offset, sizeof(offset));
  }
  own_slot_->posted.store(round_ * 2 + (is_in_ring_ ? 1 : 0),
                          std::memory_order_release);
  seen_[rank_] = round_;
  // The next round is mostly as long. If it were longer, the line would come
  // before the others, and a waiting peer would take it away again.
  if (is_in_line_) PrefetchToWrite(own_.slots[(round_ + 1) % kSlots]);
  // For the compiler only. The processor may read first: see kNapTime.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (common_.sleepers.load(std::memory_order_relaxed) != 0) RingSleepers();
}

inline int RoundBuffer::FindFailed() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return static_cast<int>(
             own_.bell.failed_peer.load(std::memory_order_relaxed)) -
         1;
}

inline const std::byte* RoundBuffer::published(int peer) const {
  const Slot& slot = GetSlot(peer);
  if (slot.posted.load(std::memory_order_relaxed) % 2 == 0) return slot.bytes;
  uint64_t offset = 0;
  std::memcpy(&offset, slot.bytes, sizeof(offset));
  return GetRing(peer) + offset;
}

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_ROUND_BUFFER_H_
