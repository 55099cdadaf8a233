#include "dataplane/mutex.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/instant.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

// Its state, as the third word of its file says: 'S' is one that waits in the
// system.
char StateOf(int64_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  return end + 2 < text.size() ? text[end + 2] : '?';
}

// Until it waits for what it was about to wait for.
void AwaitBlocked(const std::atomic<int64_t>& thread) {
  while (thread == 0 || StateOf(thread) != 'S') std::this_thread::yield();
}

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

// Nobody looks whether it is free who is asleep: the first has to wake the
// second.
TEST(MutexTest, AllWhoSleepGetIt) {
  Mutex mutex;
  mutex.Lock();
  std::atomic<int64_t> ids[2] = {};
  std::vector<std::thread> threads;
  for (std::atomic<int64_t>& id : ids) {
    threads.emplace_back([&] {
      errno = EDOM;
      id = syscall(SYS_gettid);
      { MutexLock lock(mutex); }
      EXPECT_EQ(errno, EDOM);
    });
  }
  for (const std::atomic<int64_t>& id : ids) AwaitBlocked(id);
  mutex.Unlock();
  for (std::thread& thread : threads) thread.join();
}

TEST(CondVarTest, WhoWaitsLetsTheMutexGoAndIsWoken) {
  Mutex mutex;
  CondVar changed;
  bool is_set = false;
  std::atomic<int64_t> id = 0;
  std::thread waits([&] {
    id = syscall(SYS_gettid);
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
    // It has it again.
    other = std::thread([&] {
      id = syscall(SYS_gettid);
      MutexLock own(mutex);
    });
    AwaitBlocked(id);
  }
  other.join();
}

}  // namespace
}  // namespace muster::dataplane
