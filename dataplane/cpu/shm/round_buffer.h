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

#include "base/status.h"
#include "dataplane/cpu/transport/spin_wait.h"

namespace muster::dataplane::shm {

// The same on all ranks.
struct RoundBufferTraits {
  // There are fewer processors than ranks: who waits gives way at once.
  bool is_crowded = false;
  // Of each rank's ring: a power of two, at least this.
  static constexpr size_t kRingBytesMin = 512 << 10;
  size_t ring_bytes = kRingBytesMin;

  // What a rank can show in a round: there must be room beside that of the one
  // before, each with what is left out in front of it.
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
// 1. Where every rank awaits every other, they have done so long ago: a round
// is then one synchronization, and nothing has to close it. A rank that awaits
// nobody, such as the root of a broadcast, runs up to kSlots - 1 rounds ahead
// of the others, or as far as its ring reaches.
//
// The ring is larger than this requires: larger than a processor's own cache.
// Data that was read is in the reader's cache. A writer that returns there soon
// takes it away line by line; a MiB or two later the data has moved to the
// cache that both share, from where it comes four times as fast
// (MEASUREMENTS.md).
//
// The number of the round stands in the slot, in front of the data: if the data
// is small, a reader gets both in one cache line. The number is written last,
// with release, and read first, with acquire; slots and rings need no other
// memory ordering, on any processor.
//
// Where processors share no cache, a line takes as long to arrive as a small
// collective takes otherwise. So data that fits in one line is prefetched: by
// its writer, after it has posted the round before, and by its reader, three
// rounds ahead, if the reader did not have to wait for this one. A rank that
// itself publishes a few lines prefetches another rank's next lines as soon as
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
// Two ranks on one processor alternate on it, which takes ten times as long,
// and the system may leave them there for good while other processors are idle.
// So a rank that waits for a rank last seen waiting on the same processor moves
// to another one that it may use, if no rank is there; it announces this first,
// because otherwise the other rank would move as well. Where there are fewer
// processors than ranks, the first of those that wait on one processor moves to
// another one on which two fewer wait. It moves by narrowing the affinity of
// its thread (sched_setaffinity(2)), and restores the affinity after it has run
// there.
//
// Used by one thread at a time, except for Wake.
class RoundBuffer {
 public:
  enum class Outcome {
    kDone,
    // Wake was called.
    kWoken,
    // The rank that is waited for has left.
    kLeft,
    // This rank has no memory for its ring.
    kNoRing,
  };

  // What a rank can show in a round. With the smallest ring it is this.
  size_t most_bytes() const { return traits_.most_bytes(); }
  static constexpr size_t kPieceBytes = RoundBufferTraits().most_bytes();
  // What of it stands in a note.
  static constexpr size_t kSlotBytes = 688;
  // Where ranks share a processor, who awaits nobody gets kSlots - 1 rounds
  // ahead before the others have their turn (MEASUREMENTS.md).
  static constexpr uint64_t kSlots = 32;
  // What it says in front of that, always; and behind it, where nobody looks
  // who has no need to.
  static constexpr size_t kHeadBytes = 40;
  static constexpr size_t kTailBytes = 32;

  // Of the caches.
  static constexpr size_t kLineBytes = 64;
  // So many bytes, and what is left of their last line.
  static constexpr size_t WholeLines(size_t bytes) {
    return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  }

  // With which a sleep begins: some hundred times as long as processors hold
  // back what is stored on them. (In C++ it is seen "within a reasonable amount
  // of time".) A longer sleep has one more wake-up for it.
  static constexpr std::chrono::milliseconds kNapTime{1};

  // The size of each ring with which so many ranks are fastest.
  static size_t RingBytesFor(int world_size);
  // Of the memory for so many ranks, with such rings; and of what of it is in
  // front of the rings.
  static size_t BytesFor(int world_size, size_t ring_bytes);
  static size_t SlotsBytesFor(int world_size);

  // Makes [offset, offset + bytes) of the memory ready.
  using Reserve = std::function<Status(size_t offset, size_t bytes)>;

  // `memory` has so many bytes, is aligned to kLineBytes, and was zeros before
  // the first rank came; it must live longer. `waits_for` is told the rank that
  // is waited for, and -1 afterwards, where that takes longer. `reserve` is
  // called for this rank's ring before it is first used; null: it is ready.
  // `yield` is another one in tests.
  RoundBuffer(void* memory, int rank, int world_size,
              const RoundBufferTraits& traits,
              std::function<void(int)> waits_for, Reserve reserve = nullptr,
              cpu::Yielding::Yield yield = sched_yield);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  bool is_crowded() const { return traits_.is_crowded; }

  // Begins this rank's next round, in which it shows up to `bytes`. After
  // kDone, those may be written, and head and tail. After anything else, here
  // and in Await, nothing more may be begun.
  Outcome Open(size_t bytes);
  std::byte* shows() { return own_bytes_; }
  // Aligned to 8.
  std::byte* head() { return own_slot_->head; }
  std::byte* tail() { return own_slot_->tail; }

  // Shows it.
  void Post();

  // Waits until `peer` has shown its own of this round. Then these are that,
  // until this rank posts the next round.
  Outcome Await(int peer) {
    return HasPublished(peer) ? Outcome::kDone : AwaitUnseen(peer, round_);
  }
  // Whether it has, as far as this rank knows, or as one look says.
  bool HasPublished(int peer);
  const std::byte* published(int peer) const;
  const std::byte* published_head(int peer) const { return SlotOf(peer).head; }
  const std::byte* published_tail(int peer) const { return SlotOf(peer).tail; }

  // The rank of kLeft.
  int left_peer() const { return left_peer_; }
  // Why kNoRing.
  const Status& ring_status() const { return ring_status_; }

  // Posts nothing more: those who wait for it learn that, and why. From the
  // thread that uses it, or when there is none. Only the first call counts.
  void Leave(bool has_failed);

  // A rank that has left because it has failed; -1: there is none. It may have
  // posted all that others needed of it.
  int FindFailed() const;

  // Ends what waits here, and everything later. From any thread.
  void Wake();
  bool is_woken() const { return woken_.load(std::memory_order_acquire); }

  // How often this rank has found at its first look that it has to wait.
  uint64_t waits() const { return waits_; }

  // How often this rank's thread has gone to another processor.
  int moves() const { return moves_; }

 private:
  // Further ones the processor asks for by itself when these are copied.
  static constexpr size_t kLinesAhead = 3;
  struct alignas(kLineBytes) Slot {
    // The round, times two; and one if what it shows is in the ring. Then it
    // begins with where it is there.
    std::atomic<uint64_t> posted;
    std::byte head[kHeadBytes];
    std::byte bytes[kSlotBytes];
    std::byte tail[kTailBytes];
  };
  static_assert(offsetof(Slot, head) % sizeof(uint64_t) == 0);
  // By which a rank is woken.
  struct alignas(kLineBytes) Bell {
    std::atomic<uint32_t> rings;
    // For whom it waits asleep, from 1; zero: it is awake.
    std::atomic<uint32_t> sleeps_for;
    std::atomic<uint32_t> has_left;
    // On which it waited last, or to which it goes, from 1; zero: not yet.
    std::atomic<uint32_t> processor;
    // Written by others: one of them that has left because it has failed, from
    // 1; zero: none has.
    std::atomic<uint32_t> failed_peer;
  };
  struct alignas(kLineBytes) Place {
    Bell bell;
    Slot slots[kSlots];
  };
  // Of all ranks.
  struct alignas(kLineBytes) Common {
    // How many say that they sleep.
    std::atomic<uint32_t> sleepers;
  };

  // False: it cannot be had.
  [[gnu::noinline, gnu::cold]] bool ReserveRing();
  // Where in this rank's ring the next `bytes` stand. Before others have posted
  // round `needed`, which it raises to that, they may not be written.
  std::byte* TakeOfRing(size_t bytes, uint64_t& needed);
  std::byte* RingOf(int rank) const {
    return rings_ + rank * traits_.ring_bytes;
  }

  // Takes its first line away from others, who have read it. (For all x86-64
  // processors GCC makes a plain prefetch of its own function, which does not.
  // Those that do not know the instruction do nothing.)
  static void PrefetchToWrite(const Slot& slot) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(slot.posted));
#else
    __builtin_prefetch(&slot, /*rw=*/1);
#endif
  }

  Slot& SlotOf(int rank, uint64_t round) const {
    return places_[rank].slots[round % kSlots];
  }
  // Of this rank's round. It is as far from this rank's own as their places
  // are, which takes half as long to work out.
  Slot& SlotOf(int rank) const {
    return *reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(own_slot_) +
                                    (rank - rank_) *
                                        static_cast<ptrdiff_t>(sizeof(Place)));
  }
  // The one that is awaited, or a later one of those that stand there.
  static bool HasPosted(const Slot& slot, uint64_t round) {
    return slot.posted.load(std::memory_order_acquire) >= round * 2;
  }
  bool HasPosted(int peer, uint64_t round) const {
    return HasPosted(SlotOf(peer, round), round);
  }
  // This rank reads what a peer's `note` shows. It looks into the first line,
  // which has come, before it knows what of the others it needs: where what
  // this rank shows takes a few lines, as that of others does then mostly, they
  // are asked for at once.
  void AskForMore(const Slot& slot) const {
    if (is_in_line_ || is_in_ring_) return;
    const auto* const line = reinterpret_cast<const std::byte*>(&slot);
    for (size_t i = 1; i <= kLinesAhead; ++i) {
      __builtin_prefetch(line + i * kLineBytes);
    }
  }
  Outcome AwaitUnseen(int peer, uint64_t round);
  // Waits until all have posted `round`, which this rank has, and which it
  // needs to go on.
  Outcome AwaitBehind(uint64_t round);
  // Looks how far beyond `round`, which it has posted, `peer` is.
  void SeeAhead(int peer, uint64_t round);
  Outcome AwaitSlowly(int peer, uint64_t round);
  // Whether a rank that has not posted `round` may need this processor, as far
  // as is known.
  bool IsWantedHere(uint64_t round);
  // What ends the wait, if anything does.
  bool IsOver(int peer, uint64_t round, Outcome& outcome);
  // Says where it waits, for `peer`; and goes elsewhere if that is better.
  void Spread(int peer);
  // To others: this rank is, or will be, on `processor`.
  void SayWhere(int processor);
  // Whether `peer` waited on `processor`, and where others did.
  bool IsLeftTo(int peer, int processor, cpu_set_t& taken) const;
  // Whether this rank is the first of those that waited on `processor`, and
  // there is one of its own where two fewer did. `taken`: all but that.
  bool HasFewer(int processor, cpu_set_t& taken) const;
  // What its bell says; -1: nothing.
  int ProcessorOf(int rank) const {
    return static_cast<int>(
               places_[rank].bell.processor.load(std::memory_order_relaxed)) -
           1;
  }
  // Until somebody rings, or the wait is over.
  void Sleep(int peer, uint64_t round);
  // Sleeps for `time`, whatever signals come, or until this rank's bell has
  // rung since `rings` were read.
  bool IsRungWithin(std::chrono::nanoseconds time, uint32_t rings);
  void Ring(int peer);
  // Those that wait for this rank: others would sleep on.
  void RingSleepers();

  Place* const places_;
  Place& own_;
  const int rank_;
  const int world_size_;
  // Behind all places.
  Common& common_;
  // Behind that, and no notes are in their pages.
  std::byte* const rings_;
  const RoundBufferTraits traits_;
  const std::function<void(int)> waits_for_;
  // Null: that was done.
  Reserve reserve_;
  Status ring_status_;

  // The round that this rank is in, from 1.
  uint64_t round_ = 0;
  // Its note in it, and what it shows: in that, or in the ring.
  Slot* own_slot_ = nullptr;
  std::byte* own_bytes_ = nullptr;
  bool is_in_ring_ = false;
  // It is all in the note's first line.
  bool is_in_line_ = false;
  // How much of the ring has been taken so far, round and round; and, by note,
  // had been when its round began.
  uint64_t taken_ = 0;
  uint64_t taken_before_[kSlots] = {};
  // By rank: the last round that it is known to have posted.
  std::vector<uint64_t> seen_;
  // One that all are known to have posted.
  uint64_t seen_of_all_ = 0;
  int left_peer_ = -1;
  uint64_t waits_ = 0;
  // How often it has given way before it said that it waits, in that round; or
  // as often as it may, so that its waits there are long ones.
  int yields_ = 0;
  uint64_t yields_in_ = 0;
  // Of waits that outlast those looks.
  cpu::SpinBudget spin_budget_;
  cpu::Yielding yielding_;
  int moves_ = 0;
  // Not before.
  std::chrono::steady_clock::time_point next_move_ = {};
  std::atomic<bool> woken_{false};
};

// What every small collective calls.

inline RoundBuffer::Outcome RoundBuffer::Open(size_t bytes) {
  ++round_;
  // That others have posted it, and read what was before.
  uint64_t needed = round_ < kSlots ? 0 : round_ - kSlots + 1;
  own_slot_ = &own_.slots[round_ % kSlots];
  taken_before_[round_ % kSlots] = taken_;
  is_in_ring_ = bytes > kSlotBytes;
  is_in_line_ = offsetof(Slot, bytes) + bytes <= kLineBytes;
  if (is_in_ring_ && reserve_ != nullptr && !ReserveRing()) {
    return Outcome::kNoRing;
  }
  own_bytes_ = is_in_ring_ ? TakeOfRing(bytes, needed) : own_slot_->bytes;
  return needed <= seen_of_all_ ? Outcome::kDone : AwaitBehind(needed);
}

inline bool RoundBuffer::HasPublished(int peer) {
  uint64_t& seen = seen_[peer];
  if (seen >= round_) return true;
  const Slot& slot = SlotOf(peer);
  if (!HasPosted(slot, round_)) return false;
  seen = round_;
  AskForMore(slot);
  // Who is ahead has posted it, too, and those before it have been asked for.
  // If he is not, nothing moves, as a rule: what he has not written yet is here
  // from the last time.
  __builtin_prefetch(&SlotOf(peer, round_ + 3));
  return true;
}

inline void RoundBuffer::Post() {
  if (is_in_ring_) {
    const uint64_t offset = own_bytes_ - RingOf(rank_);
    std::memcpy(own_slot_->bytes, &offset, sizeof(offset));
  }
  own_slot_->posted.store(round_ * 2 + (is_in_ring_ ? 1 : 0),
                          std::memory_order_release);
  seen_[rank_] = round_;
  // The next one is mostly as long. Of a longer one it would be there before
  // the other lines, and who waits for it would take it away again.
  if (is_in_line_) PrefetchToWrite(own_.slots[(round_ + 1) % kSlots]);
  // For the compiler. The processor may look first: see kNapTime.
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
  const Slot& slot = SlotOf(peer);
  if (slot.posted.load(std::memory_order_relaxed) % 2 == 0) return slot.bytes;
  uint64_t offset = 0;
  std::memcpy(&offset, slot.bytes, sizeof(offset));
  return RingOf(peer) + offset;
}

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_ROUND_BUFFER_H_
