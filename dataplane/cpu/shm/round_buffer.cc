#include "dataplane/cpu/shm/round_buffer.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "dataplane/cpu/transport/spin_wait.h"
#include "glog/logging.h"

namespace muster::dataplane::shm {
namespace {

using Clock = std::chrono::steady_clock;
using cpu::Futex;
using cpu::kQuickSpins;
using cpu::Relax;

// The total size of a group's rings, within the bounds of each. Rings larger
// than kRingBytesMax were no faster.
constexpr size_t kRingsBytes = 8 << 20;
constexpr size_t kRingBytesMax = 2 << 20;

// Rings do not begin at a page, as tensors often do: a processor stalls when it
// reads at the same page offset at which it has just written to another page.
constexpr size_t kRingsOffset = 2 * RoundBuffer::kLineBytes;

// The period at which a sleeper checks without being woken. A lost wake-up then
// does not hang a group.
constexpr std::chrono::nanoseconds kSleepTime = std::chrono::seconds(1);

// A rank may lose its processor for so long between its post and the wake-up.
// Such a wake-up is late, not lost.
constexpr std::chrono::nanoseconds kRingTime = std::chrono::milliseconds(100);

}  // namespace

size_t RoundBuffer::RingBytesFor(int world_size) {
  return std::clamp(std::bit_floor(kRingsBytes / world_size),
                    RoundBufferTraits::kRingBytesMin, kRingBytesMax);
}

size_t RoundBuffer::BytesFor(int world_size, size_t ring_bytes) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(sizeof(RankSlots) % kLineBytes == 0);
  return SlotsBytesFor(world_size) + kRingsOffset +
         static_cast<size_t>(world_size) * ring_bytes;
}

size_t RoundBuffer::SlotsBytesFor(int world_size) {
  // Rings are whole pages, so that they take no memory until they are used.
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes =
      static_cast<size_t>(world_size) * sizeof(RankSlots) + sizeof(Common);
  return (bytes + page - 1) / page * page;
}

RoundBuffer::RoundBuffer(void* memory, int rank, int world_size,
                         const RoundBufferTraits& traits,
                         std::function<void(int)> waits_for, Reserve reserve,
                         cpu::Yielding::Yield yield)
    : places_(static_cast<RankSlots*>(memory)),
      own_(places_[rank]),
      rank_(rank),
      world_size_(world_size),
      common_(*reinterpret_cast<Common*>(places_ + world_size)),
      rings_(static_cast<std::byte*>(memory) + SlotsBytesFor(world_size) +
             kRingsOffset),
      traits_(traits),
      waits_for_(std::move(waits_for)),
      reserve_(std::move(reserve)),
      seen_(world_size, 0),
      yielding_(yield) {
  CHECK(std::has_single_bit(traits.ring_bytes) &&
        traits.ring_bytes >= RoundBufferTraits::kRingBytesMin)
      << traits.ring_bytes;
}

bool RoundBuffer::ReserveRing() {
  const size_t offset = GetRing(rank_) - reinterpret_cast<std::byte*>(places_);
  ring_status_ = reserve_(offset, traits_.ring_bytes);
  if (ring_status_.ok()) reserve_ = nullptr;
  return ring_status_.ok();
}

std::byte* RoundBuffer::TakeOfRing(size_t bytes, uint64_t& needed) {
  CHECK_LE(bytes, most_bytes());
  const size_t whole = WholeLines(bytes);
  const size_t offset = taken_ & (traits_.ring_bytes - 1);
  const size_t left = traits_.ring_bytes - offset;
  // In one piece: a rest at the end of the ring is skipped.
  const bool fits = whole <= left;
  taken_ += fits ? whole : left + whole;
  // Rounds that may still be read and whose data may overlap the new data. The
  // previous round's does not: see most_bytes.
  uint64_t round = std::max<uint64_t>(needed, 1);
  for (; taken_before_[round % kSlots] + traits_.ring_bytes < taken_; ++round) {
    needed = round + 1;
  }
  DCHECK_LT(needed, round_);
  return GetRing(rank_) + (fits ? offset : 0);
}

RoundBuffer::WaitResult RoundBuffer::AwaitBehind(uint64_t round) {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (seen_[peer] >= round) continue;
    const WaitResult outcome = AwaitUnseen(peer, round);
    if (outcome != WaitResult::kDone) return outcome;
    SeeAhead(peer, round);
  }
  seen_of_all_ = *std::ranges::min_element(seen_);
  return WaitResult::kDone;
}

// Otherwise this rank would read another slot of the peer in every round, and
// each has to come from the peer's processor.
void RoundBuffer::SeeAhead(int peer, uint64_t round) {
  constexpr uint64_t kStep = 4;
  for (uint64_t ahead = round_ - 1; ahead > round + kStep; ahead -= kStep) {
    if (!HasPosted(peer, ahead)) continue;
    seen_[peer] = ahead;
    return;
  }
}

RoundBuffer::WaitResult RoundBuffer::AwaitUnseen(int peer, uint64_t round) {
  for (int look = 0; look < kQuickSpins; ++look) {
    if (HasPosted(peer, round)) {
      seen_[peer] = round;
      if (round == round_) AskForMore(GetSlot(peer));
      return WaitResult::kDone;
    }
    if (traits_.is_crowded && IsWantedHere(round)) break;
    Relax();
  }
  waits_for_(peer);
  const WaitResult outcome = AwaitSlowly(peer, round);
  if (outcome != WaitResult::kDone) return outcome;
  seen_[peer] = round;
  waits_for_(-1);
  return outcome;
}

bool RoundBuffer::IsWantedHere(uint64_t round) {
  const int processor = sched_getcpu();
  SayWhere(processor);
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ || seen_[peer] >= round) continue;
    const int theirs = GetProcessor(peer);
    if ((theirs < 0 || theirs == processor) && !HasPosted(peer, round)) {
      return true;
    }
  }
  return false;
}

bool RoundBuffer::IsOver(int peer, uint64_t round, WaitResult& outcome) {
  // A rank posts everything that it has to before it leaves.
  const bool has_left =
      places_[peer].bell.has_left.load(std::memory_order_acquire) != 0;
  if (HasPosted(peer, round)) {
    outcome = WaitResult::kDone;
  } else if (is_woken()) {
    outcome = WaitResult::kWoken;
  } else if (has_left) {
    outcome = WaitResult::kLeft;
    left_peer_ = peer;
  } else {
    return false;
  }
  return true;
}

RoundBuffer::WaitResult RoundBuffer::AwaitSlowly(int peer, uint64_t round) {
  WaitResult outcome = WaitResult::kDone;
  const Clock::time_point began = Clock::now();
  Clock::time_point until = began + spin_budget_.value();
  const int processor = sched_getcpu();
  SayWhere(processor);
  // A rank that needs this processor gets it sooner if this rank sleeps.
  if (yielding_.is_paused(began) &&
      (traits_.is_crowded || GetProcessor(peer) == processor)) {
    until = began;
  }
  for (Clock::time_point now = began; now < until;
       now = yielding_.GiveWay(now)) {
    if (!IsOver(peer, round, outcome)) continue;
    if (spin_budget_.is_long()) spin_budget_.HasSeen(began, Clock::now());
    return outcome;
  }
  if (IsOver(peer, round, outcome)) return outcome;
  do {
    Sleep(peer, round);
  } while (!IsOver(peer, round, outcome));
  // On a crowded host other ranks need this processor: do not spin longer.
  if (outcome == WaitResult::kDone && !traits_.is_crowded) {
    spin_budget_.HasSlept(began, Clock::now());
  }
  return outcome;
}

void RoundBuffer::SayWhere(int processor) {
  const auto says = static_cast<uint32_t>(processor + 1);
  std::atomic<uint32_t>& said = own_.bell.processor;
  // Without a store the line stays in the readers' caches.
  if (said.load(std::memory_order_relaxed) == says) return;
  said.store(says, std::memory_order_relaxed);
}

void RoundBuffer::Sleep(int peer, uint64_t round) {
  Bell& bell = own_.bell;
  // Read it before others see that this rank sleeps.
  const uint32_t rings = bell.rings.load(std::memory_order_acquire);
  common_.sleepers.fetch_add(1, std::memory_order_relaxed);
  bell.sleeps_for.store(static_cast<uint32_t>(peer + 1),
                        std::memory_order_relaxed);
  // The nap begins when others see the mark.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  WaitResult outcome;
  bool is_rung = false;
  int sleeps = 0;
  // The mark stays and `rings` is not read again between nap and sleep: a rank
  // that posted in a gap would not wake this rank, and no nap would follow.
  while (!is_rung && !IsOver(peer, round, outcome)) {
    is_rung = IsRungWithin(sleeps == 0 ? kNapTime : kSleepTime, rings);
    ++sleeps;
  }
  if (sleeps > 1 && !is_rung && HasPosted(peer, round) &&
      !IsRungWithin(kRingTime, rings)) {
    LOG_FIRST_N(WARNING, 3)
        << "backend shm: rank " << rank_ << " of its host slept on, and rank "
        << peer << " had posted round " << round;
  }
  bell.sleeps_for.store(0, std::memory_order_relaxed);
  common_.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

bool RoundBuffer::IsRungWithin(std::chrono::nanoseconds time, uint32_t rings) {
  std::atomic<uint32_t>& own = own_.bell.rings;
  const Clock::time_point until = Clock::now() + time;
  while (own.load(std::memory_order_acquire) == rings) {
    if (time <= time.zero()) return false;
    const timespec limit = {.tv_sec = time.count() / 1'000'000'000,
                            .tv_nsec = time.count() % 1'000'000'000};
    Futex(own, FUTEX_WAIT, rings, &limit);
    time = until - Clock::now();
  }
  return true;
}

void RoundBuffer::Ring(int peer) {
  Bell& bell = places_[peer].bell;
  bell.rings.fetch_add(1, std::memory_order_release);
  Futex(bell.rings, FUTEX_WAKE, 1);
}

void RoundBuffer::RingSleepers() {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    const uint32_t sleeps_for =
        places_[peer].bell.sleeps_for.load(std::memory_order_relaxed);
    if (sleeps_for == static_cast<uint32_t>(rank_ + 1)) Ring(peer);
  }
}

void RoundBuffer::Leave(bool has_failed) {
  if (own_.bell.has_left.load(std::memory_order_relaxed) != 0) return;
  // Stored before has_left: a rank that sees that sees this.
  for (int peer = 0; has_failed && peer < world_size_; ++peer) {
    places_[peer].bell.failed_peer.store(static_cast<uint32_t>(rank_ + 1),
                                         std::memory_order_relaxed);
  }
  own_.bell.has_left.store(1, std::memory_order_release);
  // A sleeper either sees has_left or is seen here. And a rank that reads data
  // which this rank's owner writes later also sees failed_peer in FindFailed.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  RingSleepers();
}

void RoundBuffer::Wake() {
  woken_.store(true, std::memory_order_release);
  Ring(rank_);
}

}  // namespace muster::dataplane::shm
