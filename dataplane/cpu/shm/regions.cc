#include "dataplane/cpu/shm/regions.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace muster::dataplane::shm {
namespace {

// The size of the head and of the gaps, and the unit of slices: a multiple of
// every system's page size.
constexpr size_t kPageBytes = 64 << 10;

// Reserve of a rank that fails, beside its copy: for errors, logs, its flight
// record, and memory that the system has counted late.
constexpr uint64_t kReserveBytes = 16 << 20;

size_t RoundedUp(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// The distance between two slices.
size_t ComputeStride(size_t slice_bytes) {
  return RoundedUp(slice_bytes) + kPageBytes;
}

}  // namespace

size_t Region::BytesFor(size_t slice_bytes, int world_size) {
  constexpr auto kMost = static_cast<size_t>(std::numeric_limits<off_t>::max());
  if (slice_bytes > kMost - 2 * kPageBytes) return kMost;
  size_t bytes = 0;
  if (__builtin_mul_overflow(ComputeStride(slice_bytes),
                             static_cast<size_t>(world_size), &bytes) ||
      bytes > kMost - 2 * kPageBytes) {
    return kMost;
  }
  return 2 * kPageBytes + bytes;
}

Region::Region(std::unique_ptr<Segment> segment, size_t slice_bytes, int rank,
               int world_size)
    : segment_(std::move(segment)),
      slice_bytes_(slice_bytes),
      rank_(rank),
      world_size_(world_size) {
  // Only around this rank's slice: the number of mappings per process is
  // limited.
  for (const int place : {rank, rank + 1}) {
    // If this fails, only the protection is missing.
    segment_->GiveBack(OffsetOfSlice(place) - kPageBytes, kPageBytes);
    mprotect(slice(place) - kPageBytes, kPageBytes, PROT_NONE);
  }
}

Region::~Region() {
  if (!is_own()) return;
  const uint32_t before =
      head()->goodbyes.fetch_add(1, std::memory_order_acq_rel);
  // The file lives on, and no rank reads the head any more.
  if (before + 1 == static_cast<uint32_t>(world_size_)) {
    segment_->GiveBack(0, kPageBytes);
  }
}

size_t Region::OffsetOfSlice(int rank) const {
  return 2 * kPageBytes + ComputeStride(slice_bytes_) * rank;
}

std::byte* Region::slice(int rank) const {
  return static_cast<std::byte*>(segment_->memory()) + OffsetOfSlice(rank);
}

std::optional<uint64_t> Region::FindOffset(const void* data,
                                           size_t bytes) const {
  if (is_released()) return std::nullopt;
  return OffsetInSlice(data, bytes);
}

bool Region::WasIn(const void* data, size_t bytes) const {
  return is_released() && OffsetInSlice(data, bytes).has_value();
}

std::optional<uint64_t> Region::OffsetInSlice(const void* data,
                                              size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(slice(rank_));
  const auto at = reinterpret_cast<uintptr_t>(data);
  if (at < begin || at - begin > slice_bytes_ ||
      bytes > slice_bytes_ - (at - begin)) {
    return std::nullopt;
  }
  return at - begin;
}

Status Region::Withdraw(uint64_t offset, size_t bytes, const MemoryLeft& left) {
  const uint64_t begin = offset / kPageBytes * kPageBytes;
  const size_t own = RoundedUp(offset + bytes - begin);
  const uint64_t together = (own + kReserveBytes) * world_size_;
  if (together > left.bytes) {
    return ResourceExhaustedError(
        absl::StrCat("a copy of ", own, " bytes, and ", kReserveBytes,
                     " besides, on each of ", world_size_, " ranks takes ",
                     together, ": ", left.Describe()));
  }
  return segment_->Withdraw(OffsetOfSlice(rank_) + begin, own);
}

void Region::Release() {
  released_.store(true, std::memory_order_relaxed);
  // Others have the slice mapped for longer: free its pages now.
  segment_->GiveBack(OffsetOfSlice(rank_), RoundedUp(slice_bytes_));
  // Without this, a program that still used it would read zeros and send them.
  mprotect(slice(rank_), RoundedUp(slice_bytes_), PROT_NONE);
  head()->releases.fetch_add(1, std::memory_order_release);
}

bool Region::IsReleasedByAll() const {
  return head()->releases.load(std::memory_order_acquire) ==
         static_cast<uint32_t>(world_size_);
}

void Regions::Add(std::shared_ptr<Region> region) {
  MutexLock lock(mutex_);
  ++last_number_;
  numbers_.emplace(region->own_slice(), last_number_);
  regions_.emplace(last_number_, std::move(region));
  any_.store(true, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_release);
}

void Regions::Forget() {
  MutexLock lock(mutex_);
  for (auto known = regions_.begin(); known != regions_.end();) {
    if (!known->second->IsReleasedByAll()) {
      ++known;
      continue;
    }
    numbers_.erase(known->second->own_slice());
    known = regions_.erase(known);
  }
  any_released_.store(std::ranges::any_of(regions_,
                                          [](const auto& known) {
                                            return known.second->is_released();
                                          }),
                      std::memory_order_release);
  version_.fetch_add(1, std::memory_order_release);
}

void Regions::Release(Region& region) {
  MutexLock lock(mutex_);
  region.Release();
  any_released_.store(true, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_release);
}

Regions::Known::const_iterator Regions::At(const void* data) const {
  const auto after = numbers_.upper_bound(data);
  return after == numbers_.begin() ? regions_.end()
                                   : regions_.find(std::prev(after)->second);
}

bool Regions::WasIn(const void* data, size_t bytes) const {
  MutexLock lock(mutex_);
  const auto found = At(data);
  return found != regions_.end() && found->second->WasIn(data, bytes);
}

Regions::BufferLocation Regions::Find(const void* data, size_t bytes) const {
  MutexLock lock(mutex_);
  const auto found = At(data);
  if (found == regions_.end()) return {};
  const std::optional<uint64_t> offset = found->second->FindOffset(data, bytes);
  return offset.has_value() ? BufferLocation{found->first, *offset}
                            : BufferLocation{};
}

void Regions::Withdraw(const void* data, size_t bytes) const {
  if (bytes == 0) return;
  Status done;
  {
    MutexLock lock(mutex_);
    const auto found = At(data);
    if (found == regions_.end()) return;
    Region& region = *found->second;
    const std::optional<uint64_t> offset = region.FindOffset(data, bytes);
    if (!offset.has_value()) return;
    done = region.Withdraw(*offset, bytes, FindMemoryLeft());
  }
  if (done.ok()) return;
  LOG(ERROR) << "backend shm: a collective in symmetric memory has failed, and "
                "ranks that go on later can write to its tensor: "
             << done.message();
}

std::byte* Regions::Locate(int peer, const BufferLocation& place) const {
  MutexLock lock(mutex_);
  const auto found = regions_.find(place.number);
  return found == regions_.end() ? nullptr
                                 : found->second->slice(peer) + place.offset;
}

void RegionFinder::ForgetWhatIsOld() {
  // Read the version before the lookup, so that results are not older than it.
  const uint64_t version = regions_.version();
  if (version == version_) return;
  version_ = version;
  found_ = {};
  located_.clear();
}

Regions::BufferLocation RegionFinder::Find(const void* data, size_t bytes) {
  ForgetWhatIsOld();
  if (found_.data != data || found_.bytes != bytes) {
    found_ = {data, bytes, regions_.Find(data, bytes)};
  }
  return found_.place;
}

std::byte* RegionFinder::LocateAnew(int peer,
                                    const Regions::BufferLocation& place) {
  ForgetWhatIsOld();
  const auto index = static_cast<size_t>(peer);
  if (index >= located_.size()) located_.resize(index + 1);
  located_[index] = {place, regions_.Locate(peer, place)};
  return located_[index].here;
}

}  // namespace muster::dataplane::shm
