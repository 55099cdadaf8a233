#include "muster/dataplane/work.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

TEST(PromisedWorkTest, CompletesOnceWithTheFirstStatus) {
  PromisedWork work("barrier #1");
  EXPECT_FALSE(work.IsCompleted());
  EXPECT_TRUE(work.status().ok());
  EXPECT_TRUE(work.Complete(AbortedError("first")));
  EXPECT_FALSE(work.Complete(OkStatus()));
  EXPECT_TRUE(work.IsCompleted());
  EXPECT_EQ(work.Wait(), AbortedError("first"));
  EXPECT_EQ(work.status(), AbortedError("first"));
  EXPECT_EQ(work.description(), "barrier #1");
}

TEST(PromisedWorkTest, WaitGivesUpAtItsDeadlineAndNamesTheWork) {
  PromisedWork work("barrier #1");
  const Status status = work.Wait(Clock::now() + std::chrono::milliseconds(1));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "barrier #1: not complete when the wait for it timed out");
  EXPECT_FALSE(work.IsCompleted());
}

TEST(PromisedWorkTest, AllWaitersWakeAndOneOfManyCompletersWins) {
  PromisedWork work("barrier #1");
  std::atomic<int> woken{0};
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      EXPECT_TRUE(work.Wait().ok());
      ++woken;
    });
  }
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      if (work.Complete(OkStatus())) ++winners;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(woken.load(), 4);
  EXPECT_EQ(winners.load(), 1);
}

TEST(PromisedWorkTest, CallbacksRunBeforeAnyWaitReturns) {
  PromisedWork work("barrier #1");
  std::atomic<bool> called{false};
  work.OnCompletion([&](const Status& status) {
    EXPECT_EQ(status, AbortedError("cause"));
    EXPECT_FALSE(work.IsCompleted());
    called = true;
  });
  std::thread waiter([&] {
    EXPECT_FALSE(work.Wait().ok());
    EXPECT_TRUE(called.load());
  });
  work.Complete(AbortedError("cause"));
  waiter.join();
}

TEST(PromisedWorkTest, CallbackOfACompleteWorkRunsAtOnce) {
  PromisedWork work("barrier #1");
  work.Complete(OkStatus());
  int calls = 0;
  work.OnCompletion([&](const Status&) { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(PromisedWorkTest, CallbackMayAddACallback) {
  PromisedWork work("barrier #1");
  int calls = 0;
  work.OnCompletion([&](const Status&) {
    work.OnCompletion([&](const Status&) { ++calls; });
  });
  work.Complete(OkStatus());
  EXPECT_EQ(calls, 1);
}

TEST(PromisedWorkTest, SourceRankIsKnownOnceTheReceiveHasSucceeded) {
  PromisedWork work("recv #1");
  work.SetSourceRank(3);
  EXPECT_EQ(work.source_rank(), -1);
  work.Complete(OkStatus());
  EXPECT_EQ(work.source_rank(), 3);
  PromisedWork failed("recv #2");
  failed.SetSourceRank(3);
  failed.Complete(AbortedError("on purpose"));
  EXPECT_EQ(failed.source_rank(), -1);
}

// Records whether Synchronize was called.
class SeenWork : public PromisedWork {
 public:
  using PromisedWork::PromisedWork;
  Status Synchronize() override {
    seen = true;
    return OkStatus();
  }
  std::atomic<bool> seen{false};
};

TEST(ProxyWorkTest, SynchronizesWithTheOtherOneOnceThatIsStarted) {
  ProxyWork work("barrier #1");
  const auto inner = std::make_shared<SeenWork>("barrier #1");
  std::thread waiter([&] { EXPECT_EQ(work.Synchronize(), OkStatus()); });
  work.Started(inner);
  waiter.join();
  EXPECT_TRUE(inner->seen);
  EXPECT_FALSE(work.IsCompleted());
}

// Waits until thread `thread` of this process sleeps in the kernel, or `ended`.
void AwaitSleep(const std::atomic<pid_t>& thread,
                const std::atomic<bool>& ended) {
  const std::string sleeps = std::to_string(SYS_futex);
  for (std::string call; call != sleeps && !ended; std::this_thread::yield()) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread.load()) +
                       "/syscall");
    file >> call;
  }
}

// For example, callbacks copy fused results to the tensors.
TEST(ProxyWorkTest, SynchronizesNotBeforeItsCallbacksHaveRun) {
  ProxyWork work("barrier #1");
  std::atomic<bool> taken_apart{false};
  work.OnCompletion([&](const Status&) { taken_apart = true; });
  const auto inner = std::make_shared<PromisedWork>("barrier #1");
  inner->Complete(OkStatus());
  work.Started(inner);
  std::atomic<pid_t> thread{0};
  std::atomic<bool> ended{false};
  std::thread waiter([&] {
    thread = static_cast<pid_t>(syscall(SYS_gettid));
    EXPECT_EQ(work.Synchronize(), OkStatus());
    EXPECT_TRUE(taken_apart);
    ended = true;
  });
  while (thread == 0) std::this_thread::yield();
  AwaitSleep(thread, ended);
  EXPECT_TRUE(work.Complete(OkStatus()));
  waiter.join();
}

TEST(ProxyWorkTest, WhatIsCompleteNeedsNoOther) {
  ProxyWork work("barrier #1");
  std::thread waiter(
      [&] { EXPECT_EQ(work.Synchronize(), AbortedError("on purpose")); });
  EXPECT_TRUE(work.Complete(AbortedError("on purpose")));
  waiter.join();
  const auto inner = std::make_shared<SeenWork>("barrier #1");
  work.Started(inner);
  // The inner work is not kept.
  EXPECT_EQ(inner.use_count(), 1);
  EXPECT_EQ(work.Synchronize(), AbortedError("on purpose"));
  EXPECT_FALSE(inner->seen);
}

}  // namespace
}  // namespace muster::dataplane
