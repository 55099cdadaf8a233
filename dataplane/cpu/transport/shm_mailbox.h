#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_SHM_MAILBOX_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_SHM_MAILBOX_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "dataplane/cpu/transport/p2p_connections.h"
#include "muster/base/status.h"

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
  // Whether a group of `ranks` can have a mailbox. With more than kRanksMax the
  // slots would be too small.
  static constexpr int kRanksMax = 256;
  static bool IsFor(int ranks);

  // The size of the memory for `ranks`; 0 if IsFor is false.
  static size_t BytesFor(int ranks);

  // `memory` is aligned to 64 bytes and was zero before the first rank used it.
  // `ranks[p]` is the rank at place p; this rank is at `place`.
  ShmMailbox(std::shared_ptr<void> memory, std::vector<int> ranks, int place);

  // Call it first if the memory is not allocated yet. Calls `reserve` for each
  // range that this rank is the first to touch. Returns its first error.
  Status Reserve(
      absl::FunctionRef<Status(size_t offset, size_t bytes)> reserve);

  // Whether `rank` is another rank of this mailbox.
  bool Reaches(int rank) const {
    return static_cast<size_t>(rank) < places_.size() &&
           places_[rank].has_value() && *places_[rank] != own_;
  }

  // The `rank` of the calls below must be one for which Reaches is true.

  // Lets `rank` put messages into this rank's slot from now on.
  void Open(int rank);

  // Puts a message into the slot of `rank`, and wakes it if needed. False if
  // the slot is not open or has no room.
  bool Put(int rank, const Message& message, const void* payload, size_t bytes);

  // Calls `receive` for each message that has come from `rank`, in order. The
  // payload, to the end of its cache line, is valid until `receive` returns.
  // False if none has come.
  bool Take(int rank,
            absl::FunctionRef<void(const Message& message,
                                   std::span<const std::byte> payload)>
                receive);

  // A cheap check whether a message may have come. It may be wrong in both
  // directions while another thread takes messages.
  bool MayHaveCome() const;

  // Sets whether senders shall wake this rank. Call Take after SetWants(true).
  void SetWants(bool wants);

  bool wants() const {
    return GetBell(own_).wants.load(std::memory_order_relaxed) != 0;
  }

  // Announces that a thread polls, or has stopped. Call Take after EndLooking.
  void BeginLooking();
  void EndLooking();

  // Sleep returns after a wake-up that followed PrepareToSleep, after `time` if
  // that is not zero, or spuriously. The thread must call Take between the two
  // calls. For one thread.
  uint32_t PrepareToSleep();
  void Sleep(uint32_t dozed, std::chrono::microseconds time);

  // Wakes the thread that sleeps.
  void Wake();

 private:
  // The state of one rank that all ranks see.
  struct alignas(64) Bell {
    std::atomic<uint32_t> rings;
    std::atomic<uint32_t> wants;
    std::atomic<uint32_t> is_asleep;
    std::atomic<uint32_t> lookers;
  };
  // Written by the reader of the slot.
  struct alignas(64) SlotState {
    std::atomic<uint64_t> taken;
    std::atomic<uint32_t> is_open;
  };
  struct Record {
    // The size with the payload, in whole cache lines. Zero: no message yet;
    // kSkip: the next message is at the beginning of the ring.
    std::atomic<uint64_t> size;
    Message message;
  };
  static constexpr size_t kLine = 64;
  static constexpr uint64_t kSkip = 1;
  // The size of all slots of one reader.
  static constexpr size_t kSlotsBytes = 256 << 10;

  // The state of the slots between this rank and another one.
  struct Peer {
    // To the peer: bytes put, and bytes it had taken when this rank last
    // looked.
    uint64_t put = 0;
    uint64_t seen_taken = 0;
    bool is_open = false;
    // From the peer: bytes taken. Take alone writes it.
    std::atomic<uint64_t> taken{0};
  };

  static size_t RingBytesFor(int ranks);
  // The size of the bells, by place, and the slot states, by slot. They come
  // first in the memory; the rings follow.
  static size_t HeadBytesFor(int ranks);

  Bell& GetBell(int place) const;
  // The state of the slot of `to` for messages from `from`.
  SlotState& GetSlotState(int to, int from) const;
  std::byte* GetRing(int to, int from) const {
    return rings_ + GetSlotIndex(to, from) * ring_bytes_;
  }
  size_t GetSlotIndex(int to, int from) const {
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
