#include "dataplane/cpu/shm/ring_writer.h"

#include <atomic>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/clock.h"
#include "dataplane/quick_clock.h"

namespace muster::dataplane::shm {

void RingWriter::CopyLong(void* to, const void* from, size_t bytes) {
  untimed_bytes_ += bytes;
  if (untimed_bytes_ < kTimedBytes) {
    CopyBy(trials_.way(), to, from, bytes);
    return;
  }
  timed_way_ = trials_.Next(std::exchange(untimed_bytes_, 0));
  const Instant began = QuickNow();
  CopyBy(timed_way_, to, from, bytes);
  // Otherwise a processor may read the clock before half of a short copy is
  // done, on either path.
  std::atomic_thread_fence(std::memory_order_seq_cst);
#if defined(__x86_64__)
  _mm_lfence();
#endif
  trials_.Took(timed_way_, bytes, QuickNow() - began);
}

void RingWriter::CopyBy(PathTrials::Path way, void* to, const void* from,
                        size_t bytes) {
  if (way == kPastCaches) {
    CopyPastCaches(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace muster::dataplane::shm
