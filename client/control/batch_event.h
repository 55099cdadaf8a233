// What the callers of one message sleep on.

#ifndef MUSTER_CLIENT_CONTROL_BATCH_EVENT_H_
#define MUSTER_CLIENT_CONTROL_BATCH_EVENT_H_

#include <atomic>
#include <cstdint>

#include "client/control/deadline.h"

namespace muster::internal {

// BatchEvent is where the callers of the operations of one message wait. Their
// answers come together, and one system call wakes all of them: a condition
// variable each costs one system call each, and one for all of a session wakes
// also those whose answers are still under way. Who waits looks first, then at
// what it waits for, and then sleeps:
//
//   for (;;) {
//     const uint32_t seen = wave.Look();
//     if (done) break;
//     wave.Sleep(seen, until);
//   }
//
// Thread-safe.
class BatchEvent {
 public:
  BatchEvent() = default;
  BatchEvent(const BatchEvent&) = delete;
  BatchEvent& operator=(const BatchEvent&) = delete;

  uint32_t Look() const { return wakes_.load(std::memory_order_acquire); }

  // Returns when WakeAll was called since `seen` was looked up, or at `until`,
  // or for no reason.
  void Sleep(uint32_t seen, Instant until);

  void WakeAll();

 private:
  std::atomic<uint32_t> wakes_{0};
  // Nobody sleeps: no system call is needed.
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_BATCH_EVENT_H_
