// How a rank copies what it shows (board.h).

#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_RING_WRITER_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_RING_WRITER_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "dataplane/backends/shm/streaming.h"

namespace muster::dataplane::shm_internal {

// WriteTrials finds out which of two ways of writing is faster: through the
// caches, or past them. Where processors share a cache, through it takes some
// half of the time, that of who reads it counted. Where they do not, every line
// is first taken away from the caches of who has read it last, which takes ten
// times as long as to write past them. Which of these is so can change at any
// time in a virtual machine, whose processors its host moves.
class WriteTrials {
 public:
  enum class Way : uint8_t { kThroughCaches, kPastCaches };

  // The other way is tried after the first so many bytes, with which a ring has
  // been gone round, and again after every so many.
  static constexpr size_t kFirstBytes = 4 << 20;
  static constexpr size_t kPeriodBytes = 64 << 20;
  // So many times as long it must take through the caches to go past them:
  // whoever reads it has to get it from memory then.
  static constexpr int kSlowerMin = 2;

  // How to write what comes next, with which `bytes` have been written since
  // the last call. Took is told how long that took.
  Way Next(size_t bytes);
  void Took(Way way, size_t bytes, std::chrono::nanoseconds time);

  // What is tried apart.
  Way way() const { return way_; }

 private:
  // Of a MiB, the last time and the one before: the longer of the two may be
  // that of whoever had the processor meanwhile.
  struct Times {
    std::chrono::nanoseconds last = {};
    std::chrono::nanoseconds before = {};
    bool are_known = false;
    std::chrono::nanoseconds Least() const { return std::min(last, before); }
  };

  Way way_ = Way::kThroughCaches;
  size_t until_trial_ = kFirstBytes;
  std::array<Times, 2> times_ = {};
};

// Not thread-safe.
class RingWriter {
 public:
  // As memcpy, to where nobody reads meanwhile.
  void Copy(void* to, const void* from, size_t bytes) {
    if (kWritesPastCaches && bytes >= kLongBytes) {
      CopyLong(to, from, bytes);
    } else if (bytes > 0) {
      CopyShort(to, from, bytes);
    }
  }

  // By which way the last one went that was timed: for tests.
  WriteTrials::Way timed_way() const { return timed_way_; }

 private:
  // What is shorter takes not much longer than it takes to measure that. And
  // that is done once for so many: where the time is told by the kernel alone
  // it takes a microsecond or more.
  static constexpr size_t kLongBytes = 4 << 10;
  static constexpr size_t kTimedBytes = 128 << 10;

  void CopyLong(void* to, const void* from, size_t bytes);
  static void CopyBy(WriteTrials::Way way, void* to, const void* from,
                     size_t bytes);

  WriteTrials trials_;
  WriteTrials::Way timed_way_ = WriteTrials::Way::kThroughCaches;
  // With the one that was timed last behind them.
  size_t untimed_bytes_ = 0;
};

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_RING_WRITER_H_
