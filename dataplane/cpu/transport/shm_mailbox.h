#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_SHM_MAILBOX_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_SHM_MAILBOX_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "dataplane/cpu/transport/p2p_connection.h"

namespace muster::dataplane::cpu {

// ShmMailbox is shared memory through which the ranks of one host send each
// other messages: each rank has one slot per sender. A slot is a ring with one
// writer and one reader (Lamport, Proving the correctness of multiprocess
// programs, 1977):
//
//         written, in whole cache lines             the next one's first word
//        |size message payload|size message|  ...  |0|
//         ^ next to be taken                        ^ next to be put
//
// A message's size is written last, with release, and read first, with acquire;
// the word behind the message was set to zero before. So a reader polls the
// place where the next message will stand, and a small message reaches it in
// one cache line. The reader publishes how much it has taken (release); the
// writer reads that (acquire) when it knows of no more free space.
//
// A slot accepts a message only if it has room and its reader has opened it. A
// message that it does not accept must travel another way; messages then
// overtake each other.
//
// A thread that polls for messages announces when it begins and when it stops.
// A sender wakes (futex(2)) a rank that wants to be woken, if no thread of that
// rank polls and one sleeps. There is a sequentially consistent fence between
// putting a message and reading these announcements, and another between
// announcing that no thread polls, or that one sleeps, and the check for
// messages that must follow: one of the two sides sees the other (Dekker's
// argument).
//
// Threads: Put and Take of one rank may be called by one thread at a time, as
// may Open and SetWants; everything else by any thread.
class ShmMailbox {
 public:
  // Whether so many ranks may have it. If more had, slots would be too small.
  static constexpr int kRanksMax = 256;
  static bool IsFor(int ranks);

  // Of the memory for so many ranks; 0: it is not for them.
  static size_t BytesFor(int ranks);

  // `memory` is aligned to 64 bytes, and was zeros before the first rank came.
  // `ranks`, by their places in it; this rank's is `place`.
  ShmMailbox(std::shared_ptr<void> memory, std::vector<int> ranks, int place);

  // Before all else, where the memory is not there yet: calls `reserve` for
  // what of it this rank touches before others have. Returns its first error.
  Status Reserve(
      absl::FunctionRef<Status(size_t offset, size_t bytes)> reserve);

  // Whether `rank` is one of the others.
  bool Reaches(int rank) const {
    return static_cast<size_t>(rank) < places_.size() &&
           places_[rank].has_value() && *places_[rank] != own_;
  }

  // Those below are of ranks that are reached.

  // From now on `rank` may leave messages here.
  void Open(int rank);

  // Leaves `rank` a message, and rings if need be. False: its slot is not open,
  // or has no room.
  bool Put(int rank, const Message& message, const void* payload, size_t bytes);

  // Takes what has come from `rank`, in order; the payload stays until the
  // call returns. False: nothing has.
  bool Take(
      int rank,
      absl::FunctionRef<void(const Message& message, const std::byte* payload)>
          receive);

  // Whether something may have come: for those who look often. While another
  // thread takes mail it may be wrong, either way.
  bool MayHaveCome() const;

  // Whether the bell is to be rung. After true, Take has to be called.
  void SetWants(bool wants);

  bool wants() const {
    return BellOf(own_).wants.load(std::memory_order_relaxed) != 0;
  }

  // A thread looks for mail. After EndLooking Take has to be called.
  void BeginLooking();
  void EndLooking();

  // For one thread: sleeps until somebody rings after PrepareToSleep was
  // called, between which and Sleep it has to call Take; or for `time`, if that
  // is not zero. It wakes for no reason, too.
  uint32_t PrepareToSleep();
  void Sleep(uint32_t dozed, std::chrono::microseconds time);

  // Has it wake up.
  void Wake();

 private:
  // What all ranks see of one.
  struct alignas(64) Bell {
    std::atomic<uint32_t> rings;
    std::atomic<uint32_t> wants;
    std::atomic<uint32_t> is_asleep;
    std::atomic<uint32_t> lookers;
  };
  // The reader of a slot writes this.
  struct alignas(64) SlotState {
    std::atomic<uint64_t> taken;
    std::atomic<uint32_t> is_open;
  };
  struct Record {
    // With the payload, in whole lines. Zero: not there yet; kSkip: the next
    // one is at the beginning of the ring.
    std::atomic<uint64_t> size;
    Message message;
  };
  static constexpr size_t kLine = 64;
  static constexpr uint64_t kSkip = 1;
  // The size of all slots of one reader.
  static constexpr size_t kSlotsBytes = 256 << 10;

  // The state of the slots between this rank and another one.
  struct Peer {
    // To it: what was put, and what it had taken of that when last seen.
    uint64_t put = 0;
    uint64_t seen_taken = 0;
    bool is_open = false;
    // From it. Written as Put and Take are.
    std::atomic<uint64_t> taken{0};
  };

  static size_t RingBytesFor(int ranks);
  // The size of all bells and slot states, which come first, by place and then
  // by slot. The rings follow.
  static size_t HeadBytesFor(int ranks);

  Bell& BellOf(int place) const;
  // Of what `from` leaves for `to`.
  SlotState& SlotStateOf(int to, int from) const;
  std::byte* RingOf(int to, int from) const {
    return rings_ + SlotOf(to, from) * ring_bytes_;
  }
  size_t SlotOf(int to, int from) const {
    return static_cast<size_t>(to) * (count_ - 1) +
           (from < to ? from : from - 1);
  }
  Record& RecordAt(std::byte* ring, uint64_t position) const {
    return *reinterpret_cast<Record*>(ring + position % ring_bytes_);
  }
  void Ring(int place);

  const std::shared_ptr<void> memory_;
  const int own_;
  const int count_;
  const size_t ring_bytes_;
  std::byte* const rings_;
  // By rank.
  std::vector<std::optional<int>> places_;
  // By place.
  std::vector<Peer> peers_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_SHM_MAILBOX_H_
