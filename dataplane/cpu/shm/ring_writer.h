// Copies the data that a rank publishes into its ring (round_buffer.h).

#ifndef MUSTER_DATAPLANE_CPU_SHM_RING_WRITER_H_
#define MUSTER_DATAPLANE_CPU_SHM_RING_WRITER_H_

#include <cstddef>

#include "dataplane/cpu/shm/path_trials.h"
#include "dataplane/cpu/shm/streaming.h"

namespace muster::dataplane::shm {

// RingWriter copies through the caches or past them (non-temporal stores),
// whichever is faster. Where processors share a cache, copying through it takes
// about half the time, the reader's time included. Where they do not, each line
// must first be taken from the cache of its last reader, which takes ten times
// as long as writing past the caches. Not thread-safe.
class RingWriter {
 public:
  // After the first so many bytes a ring has been gone round. Through the
  // caches it must take twice as long: whoever reads what went past them has to
  // get it from memory.
  static constexpr PathTrials::Terms kTerms = {.first = 4 << 20,
                                               .period = 64 << 20,
                                               .remembered = 4,
                                               .slower_percent = 200};
  static constexpr PathTrials::Path kThroughCaches = PathTrials::Path::kDefault;
  static constexpr PathTrials::Path kPastCaches =
      PathTrials::Path::kAlternative;

  // As memcpy, to where nobody reads meanwhile.
  void Copy(void* to, const void* from, size_t bytes) {
    if (kWritesPastCaches && bytes >= kLongBytes) {
      CopyLong(to, from, bytes);
    } else if (bytes > 0) {
      CopyShort(to, from, bytes);
    }
  }

  // By which way the last one went that was timed: for tests.
  PathTrials::Path timed_way() const { return timed_way_; }

 private:
  // What is shorter takes not much longer than it takes to measure that. And
  // that is done once for so many: where the time is told by the kernel alone
  // it takes a microsecond or more.
  static constexpr size_t kLongBytes = 4 << 10;
  static constexpr size_t kTimedBytes = 128 << 10;

  void CopyLong(void* to, const void* from, size_t bytes);
  static void CopyBy(PathTrials::Path way, void* to, const void* from,
                     size_t bytes);

  PathTrials trials_{kTerms};
  PathTrials::Path timed_way_ = kThroughCaches;
  // With the one that was timed last behind them.
  size_t untimed_bytes_ = 0;
};

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_RING_WRITER_H_
