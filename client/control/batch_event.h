// The event on which the callers of one message sleep.

#ifndef MUSTER_CLIENT_CONTROL_BATCH_EVENT_H_
#define MUSTER_CLIENT_CONTROL_BATCH_EVENT_H_

#include <atomic>
#include <cstdint>

#include "client/control/deadline.h"

namespace muster::internal {

// BatchEvent wakes, with one system call, all callers whose operations travel
// in one message, because their answers arrive together. A condition variable
// per caller costs one system call each; one condition variable per session
// also wakes callers whose answers are still under way. A waiter reads the
// event, checks its condition, and then sleeps:
//
//   for (;;) {
//     const uint32_t seen = event.Look();
//     if (done) break;
//     event.Sleep(seen, until);
//   }
//
// Thread-safe.
class BatchEvent {
 public:
  BatchEvent() = default;
  BatchEvent(const BatchEvent&) = delete;
  BatchEvent& operator=(const BatchEvent&) = delete;

  uint32_t Look() const { return wakes_.load(std::memory_order_acquire); }

  // Returns after a WakeAll that follows the Look of `seen`, at `until`, or
  // spuriously.
  void Sleep(uint32_t seen, Instant until);

  void WakeAll();

 private:
  std::atomic<uint32_t> wakes_{0};
  // If 0, WakeAll needs no system call.
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_BATCH_EVENT_H_
