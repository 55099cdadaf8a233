#include "dataplane/cpu/transport/shared_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "gtest/gtest.h"
#include "muster/base/clock.h"

namespace muster::dataplane::cpu {
namespace {

using Task = SharedThread::Task;

TEST(SharedThreadTest, AWokenTaskStepsAndComesAgainWhenItWants) {
  std::promise<void> third;
  int steps = 0;
  Task task([&] {
    if (++steps == 3) third.set_value();
    return steps < 3 ? Clock::now() + std::chrono::milliseconds(1)
                     : Instant::max();
  });
  task.Wake();
  third.get_future().wait();
  task.Stop();
  EXPECT_EQ(steps, 3);
}

TEST(SharedThreadTest, ASocketThatCanBeReadIsToldOnce) {
  const int socket = eventfd(1, EFD_CLOEXEC);
  std::promise<void> told;
  std::atomic<int> steps{0};
  {
    Task task(
        [&] {
          if (++steps == 1) told.set_value();
          return Instant::max();
        },
        socket);
    told.get_future().wait();
    // The socket is still readable, but the next step is another task's.
    std::promise<void> next;
    Task other([&] {
      next.set_value();
      return Instant::max();
    });
    other.Wake();
    next.get_future().wait();
  }
  EXPECT_EQ(steps, 1);
  close(socket);
}

TEST(SharedThreadTest, AStoppedTaskIsNotRunning) {
  std::promise<void> began;
  std::promise<void> goes_on;
  std::atomic<bool> ended{false};
  Task task([&] {
    began.set_value();
    goes_on.get_future().wait();
    ended = true;
    return Instant::max();
  });
  task.Wake();
  began.get_future().wait();
  const auto stopped = std::async(std::launch::async, [&] {
    task.Stop();
    EXPECT_TRUE(ended);
  });
  goes_on.set_value();
  stopped.wait();
  // After Stop, Wake has no effect.
  task.Wake();
}

}  // namespace
}  // namespace muster::dataplane::cpu
