#include "dataplane/backends/shm/regions.h"

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace muster::dataplane::shm_internal {
namespace {

// Of the head, and what slices are a multiple of: every system's pages are.
constexpr size_t kPageBytes = 64 << 10;

size_t RoundedUp(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

size_t Region::BytesFor(size_t slice_bytes, int world_size) {
  return kPageBytes + RoundedUp(slice_bytes) * world_size;
}

Region::Region(std::unique_ptr<Segment> segment, size_t slice_bytes, int rank,
               int world_size)
    : segment_(std::move(segment)),
      slice_bytes_(slice_bytes),
      rank_(rank),
      world_size_(world_size) {
  for (int peer = 0; peer < world_size; ++peer) {
    // Nothing writes there, also where this fails.
    if (peer != rank) mprotect(slice(peer), RoundedUp(slice_bytes_), PROT_READ);
  }
}

std::byte* Region::slice(int rank) const {
  return static_cast<std::byte*>(segment_->memory()) + kPageBytes +
         RoundedUp(slice_bytes_) * rank;
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

void Region::Release() {
  // Others have it mapped for longer: its pages must not wait for them.
  madvise(slice(rank_), RoundedUp(slice_bytes_), MADV_REMOVE);
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

const std::byte* Regions::Locate(int peer, const Place& place) const {
  MutexLock lock(mutex_);
  const auto found = regions_.find(place.number);
  return found == regions_.end() ? nullptr
                                 : found->second->slice(peer) + place.offset;
}

}  // namespace muster::dataplane::shm_internal
