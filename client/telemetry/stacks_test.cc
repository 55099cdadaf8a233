#include "client/telemetry/stacks.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::worker {

// The name of this function must be in the text.
__attribute__((noinline)) void WaitInAFunctionOfThisTest(
    std::atomic<int>& phase) {
  phase = 1;
  phase.notify_all();
  phase.wait(1);
  // Not the last statement: the compiler must call, not jump.
  asm volatile("");
}

namespace {

using ::testing::HasSubstr;

// Returns the block of `thread`.
std::string FindBlock(pid_t thread, const std::string& text) {
  const size_t begin = text.find("thread " + std::to_string(thread) + " (");
  if (begin == std::string::npos) return "none in\n" + text;
  return text.substr(begin, text.find("\n\n", begin) - begin);
}

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

TEST(StacksTest, ShowWhereEachThreadIs) {
  std::atomic<int> phase = 0;
  pid_t id = 0;
  std::thread thread([&] {
    id = ThreadId();
    pthread_setname_np(pthread_self(), "grinder");
    WaitInAFunctionOfThisTest(phase);
  });
  phase.wait(0);
  const std::string text = StacksOfAllThreads();
  const std::string again = StacksOfAllThreads();
  phase = 2;
  phase.notify_all();
  thread.join();
  for (const std::string& each : {text, again}) {
    EXPECT_THAT(FindBlock(id, each), HasSubstr("\"grinder\", "));
    EXPECT_THAT(FindBlock(id, each), HasSubstr("WaitInAFunctionOfThisTest"));
    EXPECT_THAT(FindBlock(ThreadId(), each), HasSubstr("the one that asks"));
    EXPECT_THAT(FindBlock(ThreadId(), each), HasSubstr("StacksOfAllThreads"));
  }
  EXPECT_THAT(FindBlock(id, StacksOfAllThreads()), HasSubstr("none in"));
}

TEST(StacksTest, AThreadThatBlocksSignalsIsListed) {
  std::atomic<int> phase = 0;
  pid_t id = 0;
  std::thread thread([&] {
    id = ThreadId();
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    WaitInAFunctionOfThisTest(phase);
  });
  phase.wait(0);
  const std::string text = StacksOfAllThreads();
  EXPECT_THAT(FindBlock(id, text), HasSubstr("does not answer"));
  EXPECT_THAT(FindBlock(ThreadId(), text), HasSubstr("StacksOfAllThreads"));
  phase = 2;
  phase.notify_all();
  thread.join();
}

}  // namespace
}  // namespace muster::worker
