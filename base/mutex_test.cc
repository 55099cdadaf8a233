#include "muster/base/mutex.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/blocked.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"

namespace muster::base {
namespace {

using muster::AwaitBlocked;
using muster::Interrupt;
using muster::ThisThreadId;

TEST(MutexTest, OneThreadHasIt) {
  constexpr int kThreads = 4;
  constexpr int kTimes = 20000;
  Mutex mutex;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int time = 0; time < kTimes; ++time) {
        MutexLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kTimes);
}

// Sleeping threads do not poll the mutex: the first must wake the second.
TEST(MutexTest, AllWhoSleepGetIt) {
  Mutex mutex;
  mutex.Lock();
  std::atomic<int64_t> ids[2] = {};
  std::vector<std::thread> threads;
  for (std::atomic<int64_t>& id : ids) {
    threads.emplace_back([&] {
      errno = EDOM;
      id = ThisThreadId();
      { MutexLock lock(mutex); }
      EXPECT_EQ(errno, EDOM);
    });
  }
  for (int i = 0; i < 2; ++i) Interrupt(threads[i], ids[i]);
  mutex.Unlock();
  for (std::thread& thread : threads) thread.join();
}

TEST(CondVarTest, WhoWaitsLetsTheMutexGoAndIsWoken) {
  Mutex mutex;
  CondVar changed;
  bool is_set = false;
  std::atomic<int64_t> id = 0;
  std::thread waits([&] {
    id = ThisThreadId();
    MutexLock lock(mutex);
    while (!is_set) changed.Wait(mutex);
  });
  AwaitBlocked(id);
  {
    MutexLock lock(mutex);
    is_set = true;
    changed.NotifyOne();
  }
  waits.join();
}

TEST(CondVarTest, AWaitEndsAtItsDeadline) {
  Mutex mutex;
  CondVar changed;
  std::atomic<int64_t> id = 0;
  std::thread other;
  {
    MutexLock lock(mutex);
    const Instant deadline = Clock::now() + std::chrono::milliseconds(10);
    while (changed.WaitUntil(mutex, deadline)) continue;
    EXPECT_GE(Clock::now(), deadline);
    // WaitUntil has locked the mutex again.
    other = std::thread([&] {
      id = ThisThreadId();
      MutexLock own(mutex);
    });
    AwaitBlocked(id);
  }
  other.join();
}

}  // namespace
}  // namespace muster::base
