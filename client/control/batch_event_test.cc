#include "client/control/batch_event.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace muster::internal {
namespace {

TEST(WaveTest, WakesEverybody) {
  Wave wave;
  std::atomic<bool> done{false};
  std::atomic<int> looked{0};
  std::vector<std::thread> callers;
  callers.reserve(8);
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (;;) {
        const uint32_t seen = wave.Look();
        ++looked;
        if (done) return;
        wave.Sleep(seen, Instant::max());
      }
    });
  }
  while (looked < 8) std::this_thread::yield();
  done = true;
  wave.WakeAll();
  for (std::thread& caller : callers) caller.join();
}

TEST(WaveTest, AWakeBetweenLookAndSleepIsNotLost) {
  Wave wave;
  const uint32_t seen = wave.Look();
  wave.WakeAll();
  wave.Sleep(seen, Instant::max());
}

TEST(WaveTest, SleepsNoLongerThanItWasTold) {
  Wave wave;
  const Instant until = Clock::now() + std::chrono::milliseconds(20);
  const uint32_t seen = wave.Look();
  while (Clock::now() < until) wave.Sleep(seen, until);
  wave.Sleep(seen, until);
  wave.Sleep(seen, Instant());
}

}  // namespace
}  // namespace muster::internal
