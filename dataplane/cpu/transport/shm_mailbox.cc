#include "dataplane/cpu/transport/shm_mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dataplane/cpu/transport/spin_wait.h"

namespace muster::dataplane::cpu {
size_t ShmMailbox::RingBytesFor(int ranks) {
  return kSlotsBytes / static_cast<size_t>(ranks - 1) / kLine * kLine;
}

size_t ShmMailbox::HeadBytesFor(int ranks) {
  const auto count = static_cast<size_t>(ranks);
  return count * sizeof(Bell) + count * (count - 1) * sizeof(SlotState);
}

bool ShmMailbox::IsFor(int ranks) { return ranks > 1 && ranks <= kRanksMax; }

size_t ShmMailbox::BytesFor(int ranks) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(sizeof(Record) <= kLine);
  if (!IsFor(ranks)) return 0;
  const auto count = static_cast<size_t>(ranks);
  return HeadBytesFor(ranks) + count * (count - 1) * RingBytesFor(ranks);
}

ShmMailbox::ShmMailbox(std::shared_ptr<void> memory, std::vector<int> ranks,
                       int place)
    : memory_(std::move(memory)),
      own_(place),
      count_(static_cast<int>(ranks.size())),
      ring_bytes_(RingBytesFor(count_)),
      rings_(static_cast<std::byte*>(memory_.get()) + HeadBytesFor(count_)),
      places_(*std::ranges::max_element(ranks) + 1),
      peers_(ranks.size()) {
  for (int each = 0; each < count_; ++each) places_[ranks[each]] = each;
}

Status ShmMailbox::Reserve(
    absl::FunctionRef<Status(size_t offset, size_t bytes)> reserve) {
  Status status = reserve(0, HeadBytesFor(count_));
  if (!status.ok()) return status;
  // Another rank's ring is written only after that rank has opened it.
  const size_t own_bytes = static_cast<size_t>(count_ - 1) * ring_bytes_;
  return reserve(HeadBytesFor(count_) + own_ * own_bytes, own_bytes);
}

ShmMailbox::Bell& ShmMailbox::GetBell(int place) const {
  return static_cast<Bell*>(memory_.get())[place];
}

ShmMailbox::SlotState& ShmMailbox::GetSlotState(int to, int from) const {
  auto* const slots =
      reinterpret_cast<SlotState*>(static_cast<Bell*>(memory_.get()) + count_);
  return slots[GetSlotIndex(to, from)];
}

void ShmMailbox::Open(int rank) {
  GetSlotState(own_, *places_[rank])
      .is_open.store(1, std::memory_order_release);
}

bool ShmMailbox::Put(int rank, const Message& message, const void* payload,
                     size_t bytes) {
  const int place = *places_[rank];
  Peer& peer = peers_[place];
  SlotState& slot = GetSlotState(place, own_);
  if (!peer.is_open) {
    peer.is_open = slot.is_open.load(std::memory_order_acquire) != 0;
    if (!peer.is_open) return false;
  }
  const size_t size = (sizeof(Record) + bytes + kLine - 1) / kLine * kLine;
  // At most half the ring, so that a free ring has room at every position.
  if (size > ring_bytes_ / 2) return false;
  const size_t to_end = ring_bytes_ - peer.put % ring_bytes_;
  const size_t skipped = size <= to_end ? 0 : to_end;
  // Includes a line behind the message, for the zero.
  const uint64_t end = peer.put + skipped + size + kLine;
  if (end - peer.seen_taken > ring_bytes_) {
    peer.seen_taken = slot.taken.load(std::memory_order_acquire);
    if (end - peer.seen_taken > ring_bytes_) return false;
  }
  std::byte* const ring = GetRing(place, own_);
  Record& first = RecordAt(ring, peer.put);
  Record& record = RecordAt(ring, peer.put + skipped);
  record.message = message;
  if (bytes > 0) {
    std::memcpy(reinterpret_cast<std::byte*>(&record) + sizeof(Record), payload,
                bytes);
  }
  peer.put += skipped + size;
  RecordAt(ring, peer.put).size.store(0, std::memory_order_relaxed);
  record.size.store(size, std::memory_order_release);
  if (skipped > 0) first.size.store(kSkip, std::memory_order_release);
  Ring(place);
  return true;
}

bool ShmMailbox::Take(
    int rank, absl::FunctionRef<void(const Message& message,
                                     std::span<const std::byte> payload)>
                  receive) {
  const int place = *places_[rank];
  Peer& peer = peers_[place];
  std::byte* const ring = GetRing(own_, place);
  bool has_come = false;
  for (;;) {
    uint64_t taken = peer.taken.load(std::memory_order_relaxed);
    const Record& record = RecordAt(ring, taken);
    const uint64_t size = record.size.load(std::memory_order_acquire);
    if (size == 0) return has_come;
    if (size == kSkip) {
      taken += ring_bytes_ - taken % ring_bytes_;
    } else {
      has_come = true;
      receive(record.message,
              {reinterpret_cast<const std::byte*>(&record) + sizeof(Record),
               size - sizeof(Record)});
      taken += size;
    }
    peer.taken.store(taken, std::memory_order_relaxed);
    GetSlotState(own_, place).taken.store(taken, std::memory_order_release);
  }
}

bool ShmMailbox::MayHaveCome() const {
  for (int place = 0; place < count_; ++place) {
    if (place == own_) continue;
    const uint64_t taken = peers_[place].taken.load(std::memory_order_relaxed);
    if (RecordAt(GetRing(own_, place), taken)
            .size.load(std::memory_order_relaxed) != 0) {
      return true;
    }
  }
  return false;
}

void ShmMailbox::Ring(int place) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Bell& bell = GetBell(place);
  if (bell.wants.load(std::memory_order_relaxed) == 0 ||
      bell.is_asleep.load(std::memory_order_relaxed) == 0 ||
      bell.lookers.load(std::memory_order_relaxed) > 0) {
    return;
  }
  bell.rings.fetch_add(1, std::memory_order_relaxed);
  Futex(bell.rings, FUTEX_WAKE, 1);
}

void ShmMailbox::SetWants(bool wants) {
  GetBell(own_).wants.store(wants ? 1 : 0, std::memory_order_relaxed);
  if (wants) std::atomic_thread_fence(std::memory_order_seq_cst);
}

void ShmMailbox::BeginLooking() {
  GetBell(own_).lookers.fetch_add(1, std::memory_order_relaxed);
}

void ShmMailbox::EndLooking() {
  GetBell(own_).lookers.fetch_sub(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

uint32_t ShmMailbox::PrepareToSleep() {
  Bell& bell = GetBell(own_);
  const uint32_t rings = bell.rings.load(std::memory_order_relaxed);
  bell.is_asleep.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return rings;
}

void ShmMailbox::Sleep(uint32_t dozed, std::chrono::microseconds time) {
  Bell& bell = GetBell(own_);
  const timespec limit = {.tv_sec = time.count() / 1'000'000,
                          .tv_nsec = time.count() % 1'000'000 * 1'000};
  Futex(bell.rings, FUTEX_WAIT, dozed, time.count() > 0 ? &limit : nullptr);
  bell.is_asleep.store(0, std::memory_order_relaxed);
}

void ShmMailbox::Wake() {
  Bell& bell = GetBell(own_);
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  Futex(bell.rings, FUTEX_WAKE, 1);
}

}  // namespace muster::dataplane::cpu
