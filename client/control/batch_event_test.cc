#include "client/control/batch_event.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace muster::internal {
namespace {

TEST(BatchEventTest, WakesEverybody) {
  BatchEvent batch_event;
  std::atomic<bool> done{false};
  std::atomic<int> looked{0};
  std::vector<std::thread> callers;
  callers.reserve(8);
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (;;) {
        const uint32_t seen = batch_event.Look();
        ++looked;
        if (done) return;
        batch_event.Sleep(seen, Instant::max());
      }
    });
  }
  while (looked < 8) std::this_thread::yield();
  done = true;
  batch_event.WakeAll();
  for (std::thread& caller : callers) caller.join();
}

TEST(BatchEventTest, AWakeBetweenLookAndSleepIsNotLost) {
  BatchEvent batch_event;
  const uint32_t seen = batch_event.Look();
  batch_event.WakeAll();
  batch_event.Sleep(seen, Instant::max());
}

TEST(BatchEventTest, SleepsNoLongerThanItWasTold) {
  BatchEvent batch_event;
  const Instant until = Clock::now() + std::chrono::milliseconds(20);
  const uint32_t seen = batch_event.Look();
  while (Clock::now() < until) batch_event.Sleep(seen, until);
  batch_event.Sleep(seen, until);
  batch_event.Sleep(seen, Instant());
}

}  // namespace
}  // namespace muster::internal
