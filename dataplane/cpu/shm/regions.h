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

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/cpu/shm/available_memory.h"
#include "dataplane/cpu/shm/segment.h"

namespace muster::dataplane::shm {

// Region is a block of symmetric memory of a group: one slice per rank, all of
// one size, in a Segment that all ranks have mapped. The pages before and after
// a rank's own slice are inaccessible to it, so that an overrun of a tensor
// does not write to another rank's slice. A forked child inherits the mapping
// and releases nothing. Thread-safe.
class Region {
 public:
  // Of a segment for slices of `slice_bytes` each; if there is no number for
  // that, the largest that a segment can be asked for.
  static size_t BytesFor(size_t slice_bytes, int world_size);

  // `segment` has BytesFor that, and was zeros before the first rank came.
  Region(std::unique_ptr<Segment> segment, size_t slice_bytes, int rank,
         int world_size);
  ~Region();

  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Page-aligned.
  std::byte* slice(int rank) const;
  std::byte* own_slice() const { return slice(rank_); }

  // Where [data, data + bytes) is in this rank's slice, if it is there, and not
  // released.
  std::optional<uint64_t> OffsetOf(const void* data, size_t bytes) const;

  // Whether this rank has released its slice, and [data, data + bytes) was in
  // it.
  bool WasIn(const void* data, size_t bytes) const;

  // Nothing that other ranks write to these bytes of this rank's slice from now
  // on is seen there: a rank that was stopped may do so when the group has long
  // given it up. The group has failed. Takes so much memory again of what is
  // `left`, if that does for all ranks: they all do so at about the same time,
  // and each needs some for what it says and does then.
  // Errors: kResourceExhausted: it is shared as before, or some of it.
  Status Withdraw(uint64_t offset, size_t bytes, const MemoryLeft& left);

  // Whether this process has made it: not one that was forked off.
  bool is_own() const { return getpid() == process_; }

  // This rank does not need its slice any more, whose memory goes back to the
  // system, and which nobody can touch in this process from now on. Once.
  void Release();
  bool is_released() const { return released_.load(std::memory_order_relaxed); }
  bool IsReleasedByAll() const;

 private:
  // The first bytes of the segment.
  struct Head {
    std::atomic<uint32_t> releases;
    // By those who will not look here any more.
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

// Regions holds the regions of a group, by numbers that are the same on all
// ranks. Thread-safe.
class Regions {
 public:
  // What of a rank's memory is in a region.
  struct Place {
    friend bool operator==(const Place&, const Place&) = default;

    // From 1; 0: in none.
    uint64_t number = 0;
    uint64_t offset = 0;
  };

  // In one order on all ranks.
  void Add(std::shared_ptr<Region> region);

  // Those that all ranks have released.
  void Forget();

  // Whether any was ever added. The same on all ranks between two collectives,
  // if they are in one order with AllocateSymmetric.
  bool any() const { return any_.load(std::memory_order_acquire); }

  // This rank does not need its slice of `region`, which was added, any more.
  // Not in a process that was forked off: see Region::is_own.
  void Release(Region& region);

  // Whether this rank has released what it had there. That is forgotten with
  // the region.
  bool WasIn(const void* data, size_t bytes) const;
  // Whether anything was, and is not forgotten.
  const std::atomic<bool>& any_released() const { return any_released_; }

  // Another number whenever Find or Locate may answer otherwise.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  // Where this rank's memory is.
  Place Find(const void* data, size_t bytes) const;

  // See Region, of this rank's memory; elsewhere nothing has to be done.
  void Withdraw(const void* data, size_t bytes) const;

  // `place` of `peer`, here; null if it is in none.
  std::byte* Locate(int peer, const Place& place) const;

 private:
  std::atomic<bool> any_{false};
  std::atomic<bool> any_released_{false};
  std::atomic<uint64_t> version_{1};
  using Known = std::map<uint64_t, std::shared_ptr<Region>>;

  // The one in which this rank has `data`, if that is in any; else its end.
  Known::const_iterator At(const void* data) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  uint64_t last_number_ MUSTER_GUARDED_BY(mutex_) = 0;
  // By number.
  Known regions_ MUSTER_GUARDED_BY(mutex_);
  // By where this rank's slices begin: the numbers.
  std::map<const void*, uint64_t> numbers_ MUSTER_GUARDED_BY(mutex_);
};

// RegionFinder looks things up in Regions, and remembers what it found last: a
// collective mostly is where the last one was. For one thread at a time.
class RegionFinder {
 public:
  // `regions` lives longer.
  explicit RegionFinder(const Regions& regions) : regions_(regions) {}

  // See Regions.
  Regions::Place Find(const void* data, size_t bytes);
  std::byte* Locate(int peer, const Regions::Place& place) {
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
    Regions::Place place = {};
  };
  struct Located {
    Regions::Place place = {};
    std::byte* here = nullptr;
  };

  std::byte* LocateAnew(int peer, const Regions::Place& place);
  void ForgetWhatIsOld();

  const Regions& regions_;
  // Of what is remembered.
  uint64_t version_ = 0;
  Found found_;
  // By rank.
  std::vector<Located> located_;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_REGIONS_H_
