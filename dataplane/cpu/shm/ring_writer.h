// Copies the data that a rank publishes into its ring (round_buffer.h).

#ifndef MUSTER_DATAPLANE_CPU_SHM_RING_WRITER_H_
#define MUSTER_DATAPLANE_CPU_SHM_RING_WRITER_H_

#include <cstddef>

#include "dataplane/cpu/shm/path_trials.h"
#include "dataplane/cpu/shm/streaming.h"

namespace muster::dataplane::shm {

// RingWriter copies through the caches or past them (non-temporal stores),
// whichever is faster. If processors share a cache, copying through it takes
// about half the time, the reader's included. If they do not, each line must
// first be taken from its last reader's cache, which takes ten times as long as
// writing past the caches. Not thread-safe.
class RingWriter {
 public:
  // `first` is more than one round of a ring. Copying through the caches is
  // left only if it takes twice as long, because data that went past them must
  // be read from memory.
  static constexpr PathTrials::Terms kTerms = {.first = 4 << 20,
                                               .period = 64 << 20,
                                               .remembered = 4,
                                               .slower_percent = 200};
  static constexpr PathTrials::Path kThroughCaches = PathTrials::Path::kDefault;
  static constexpr PathTrials::Path kPastCaches =
      PathTrials::Path::kAlternative;

  // As memcpy. No other thread may read `to` meanwhile.
  void Copy(void* to, const void* from, size_t bytes) {
    if (kWritesPastCaches && bytes >= kLongBytes) {
      CopyLong(to, from, bytes);
    } else if (bytes > 0) {
      CopyShort(to, from, bytes);
    }
  }

  // The path of the last timed copy: for tests.
  PathTrials::Path timed_way() const { return timed_way_; }

 private:
  // Shorter copies are not timed, because timing takes almost as long. One copy
  // per kTimedBytes is timed: reading the clock by a system call takes a
  // microsecond or more.
  static constexpr size_t kLongBytes = 4 << 10;
  static constexpr size_t kTimedBytes = 128 << 10;

  void CopyLong(void* to, const void* from, size_t bytes);
  static void CopyBy(PathTrials::Path way, void* to, const void* from,
                     size_t bytes);

  PathTrials trials_{kTerms};
  PathTrials::Path timed_way_ = kThroughCaches;
  // The bytes copied since the last timed copy.
  size_t untimed_bytes_ = 0;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_RING_WRITER_H_
