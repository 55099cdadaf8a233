#include "dataplane/backends/shm/regions.h"

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "glog/logging.h"

namespace muster::dataplane::shm_internal {
namespace {

// Of the head, of what lies between slices, and what these are a multiple of:
// every system's pages divide it.
constexpr size_t kPageBytes = 64 << 10;

size_t RoundedUp(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// From one slice to the next.
size_t StrideOf(size_t slice_bytes) {
  return RoundedUp(slice_bytes) + kPageBytes;
}

}  // namespace

size_t Region::BytesFor(size_t slice_bytes, int world_size) {
  return 2 * kPageBytes + StrideOf(slice_bytes) * world_size;
}

Region::Region(std::unique_ptr<Segment> segment, size_t slice_bytes, int rank,
               int world_size)
    : segment_(std::move(segment)),
      slice_bytes_(slice_bytes),
      rank_(rank),
      world_size_(world_size) {
  for (int place = 0; place <= world_size; ++place) {
    // Where this fails, nothing is missing but the protection.
    segment_->GiveBack(OffsetOfSlice(place) - kPageBytes, kPageBytes);
    mprotect(slice(place) - kPageBytes, kPageBytes, PROT_NONE);
  }
}

size_t Region::OffsetOfSlice(int rank) const {
  return 2 * kPageBytes + StrideOf(slice_bytes_) * rank;
}

std::byte* Region::slice(int rank) const {
  return static_cast<std::byte*>(segment_->memory()) + OffsetOfSlice(rank);
}

std::optional<uint64_t> Region::OffsetOf(const void* data, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(slice(rank_));
  const auto at = reinterpret_cast<uintptr_t>(data);
  if (at < begin || at - begin > slice_bytes_ ||
      bytes > slice_bytes_ - (at - begin)) {
    return std::nullopt;
  }
  return at - begin;
}

absl::Status Region::Withdraw(uint64_t offset, size_t bytes) {
  const uint64_t begin = offset / kPageBytes * kPageBytes;
  return segment_->Withdraw(OffsetOfSlice(rank_) + begin,
                            RoundedUp(offset + bytes - begin));
}

void Region::Release() {
  // Others have it mapped for longer: its pages must not wait for them.
  segment_->GiveBack(OffsetOfSlice(rank_), RoundedUp(slice_bytes_));
  head()->releases.fetch_add(1, std::memory_order_release);
}

bool Region::IsReleasedByAll() const {
  return head()->releases.load(std::memory_order_acquire) ==
         static_cast<uint32_t>(world_size_);
}

void Regions::Add(std::shared_ptr<Region> region) {
  MutexLock lock(mutex_);
  std::erase_if(regions_, [](const auto& known) {
    return known.second->IsReleasedByAll();
  });
  regions_.emplace(++last_number_, std::move(region));
  any_.store(true, std::memory_order_release);
}

Regions::Place Regions::Find(const void* data, size_t bytes) const {
  MutexLock lock(mutex_);
  for (const auto& [number, region] : regions_) {
    const std::optional<uint64_t> offset = region->OffsetOf(data, bytes);
    if (offset.has_value()) return {number, *offset};
  }
  return {};
}

void Regions::Withdraw(const void* data, size_t bytes) const {
  if (bytes == 0) return;
  absl::Status done;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, region] : regions_) {
      const std::optional<uint64_t> offset = region->OffsetOf(data, bytes);
      if (offset.has_value()) done = region->Withdraw(*offset, bytes);
    }
  }
  if (done.ok()) return;
  LOG(ERROR) << "backend shm: a collective in symmetric memory has failed, and "
                "ranks that go on later can write to its tensor: "
             << done.message();
}

std::byte* Regions::Locate(int peer, const Place& place) const {
  MutexLock lock(mutex_);
  const auto found = regions_.find(place.number);
  return found == regions_.end() ? nullptr
                                 : found->second->slice(peer) + place.offset;
}

}  // namespace muster::dataplane::shm_internal
