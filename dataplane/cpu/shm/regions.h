#ifndef MUSTER_DATAPLANE_CPU_SHM_REGIONS_H_
#define MUSTER_DATAPLANE_CPU_SHM_REGIONS_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "dataplane/cpu/shm/available_memory.h"
#include "dataplane/cpu/shm/segment.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::shm {

// Region is a block of symmetric memory of a group: one slice per rank, all of
// one size, in a Segment that all ranks have mapped. The pages before and after
// a rank's own slice are inaccessible to it, so that an overrun of a tensor
// does not write to another rank's slice. A forked child inherits the mapping
// and releases nothing. Thread-safe.
class Region {
 public:
  // The size of a segment for slices of `slice_bytes` each. On overflow, the
  // largest size of a segment.
  static size_t BytesFor(size_t slice_bytes, int world_size);

  // `segment` has the size BytesFor and was zero before the first rank used it.
  Region(std::unique_ptr<Segment> segment, size_t slice_bytes, int rank,
         int world_size);
  ~Region();

  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Page-aligned.
  std::byte* slice(int rank) const;
  std::byte* own_slice() const { return slice(rank_); }

  // The offset of [data, data + bytes) in this rank's slice; nullopt if it is
  // elsewhere or the slice is released.
  std::optional<uint64_t> FindOffset(const void* data, size_t bytes) const;

  // Whether this rank has released its slice, which contained [data, data +
  // bytes).
  bool WasIn(const void* data, size_t bytes) const;

  // Call it when the group has failed. Hides all later writes by other ranks to
  // these bytes of this rank's slice: a rank that was stopped may still write
  // after the group has given it up. Takes `bytes` more memory, if `left`
  // suffices for all ranks with a reserve: they all do this at about the same
  // time. Errors: kResourceExhausted: all or some of it is still shared.
  Status Withdraw(uint64_t offset, size_t bytes, const MemoryLeft& left);

  // Whether this process has made the region; false in a forked child.
  bool is_own() const { return getpid() == process_; }

  // Returns the memory of this rank's slice to the system and makes it
  // inaccessible in this process. Call it once.
  void Release();
  bool is_released() const { return released_.load(std::memory_order_relaxed); }
  bool IsReleasedByAll() const;

 private:
  // The first bytes of the segment.
  struct Head {
    std::atomic<uint32_t> releases;
    // The number of ranks that will not read this head again.
    std::atomic<uint32_t> goodbyes;
  };
  size_t OffsetOfSlice(int rank) const;
  std::optional<uint64_t> OffsetInSlice(const void* data, size_t bytes) const;
  Head* head() const { return static_cast<Head*>(segment_->memory()); }

  const std::unique_ptr<Segment> segment_;
  const size_t slice_bytes_;
  const int rank_;
  const int world_size_;
  const pid_t process_ = getpid();
  std::atomic<bool> released_{false};
};

// Regions holds the regions of a group by numbers that are the same on all
// ranks. Thread-safe.
class Regions {
 public:
  // The location of a rank's memory in a region.
  struct BufferLocation {
    friend bool operator==(const BufferLocation&,
                           const BufferLocation&) = default;

    // The region's number, from 1; 0: in no region.
    uint64_t number = 0;
    uint64_t offset = 0;
  };

  // Adds a region. All ranks add in one order.
  void Add(std::shared_ptr<Region> region);

  // Removes the regions that all ranks have released.
  void Forget();

  // Whether a region was ever added. The same on all ranks between two
  // collectives, which are in one order with AllocateSymmetric.
  bool any() const { return any_.load(std::memory_order_acquire); }

  // Releases this rank's slice of `region`, which was added. Do not call it in
  // a forked child: see Region::is_own.
  void Release(Region& region);

  // Whether the memory was in a slice that this rank has released, and the
  // region is not forgotten.
  bool WasIn(const void* data, size_t bytes) const;
  // Whether any region that is not forgotten has been released by this rank.
  const std::atomic<bool>& any_released() const { return any_released_; }

  // Changes whenever the results of Find or Locate may change.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  // The location of this rank's memory.
  BufferLocation Find(const void* data, size_t bytes) const;

  // See Region::Withdraw. Does nothing for memory outside all regions.
  void Withdraw(const void* data, size_t bytes) const;

  // The address in this process of `place` of `peer`; null if it is in no
  // region.
  std::byte* Locate(int peer, const BufferLocation& place) const;

 private:
  std::atomic<bool> any_{false};
  std::atomic<bool> any_released_{false};
  std::atomic<uint64_t> version_{1};
  using Known = std::map<uint64_t, std::shared_ptr<Region>>;

  // The region whose slice of this rank may contain `data`, or regions_.end().
  Known::const_iterator At(const void* data) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  uint64_t last_number_ MUSTER_GUARDED_BY(mutex_) = 0;
  // By number.
  Known regions_ MUSTER_GUARDED_BY(mutex_);
  // The numbers, by the beginning of this rank's slice.
  std::map<const void*, uint64_t> numbers_ MUSTER_GUARDED_BY(mutex_);
};

// RegionFinder caches the last results of Regions: a collective mostly uses the
// same memory as the last one. For one thread at a time.
class RegionFinder {
 public:
  // `regions` must live longer.
  explicit RegionFinder(const Regions& regions) : regions_(regions) {}

  // See Regions.
  Regions::BufferLocation Find(const void* data, size_t bytes);
  std::byte* Locate(int peer, const Regions::BufferLocation& place) {
    const auto index = static_cast<size_t>(peer);
    if (version_ == regions_.version() && index < located_.size() &&
        located_[index].here != nullptr && located_[index].place == place) {
      return located_[index].here;
    }
    return LocateAnew(peer, place);
  }
  void Withdraw(const void* data, size_t bytes) const {
    regions_.Withdraw(data, bytes);
  }

 private:
  struct Found {
    const void* data = nullptr;
    size_t bytes = 0;
    Regions::BufferLocation place = {};
  };
  struct Located {
    Regions::BufferLocation place = {};
    std::byte* here = nullptr;
  };

  std::byte* LocateAnew(int peer, const Regions::BufferLocation& place);
  void ForgetWhatIsOld();

  const Regions& regions_;
  // The version of the cached results.
  uint64_t version_ = 0;
  Found found_;
  // By rank.
  std::vector<Located> located_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_REGIONS_H_
