#include "coordinator/server/jobs/fair_queue.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

// The queue compares jobs and never dereferences them.
const Job* JobNumber(int number) {
  static const char jobs[10] = {};
  return reinterpret_cast<const Job*>(&jobs[number]);
}

// A session of a job.
const void* Owner(int number) {
  static const char owners[10] = {};
  return &owners[number];
}

// Keeps one thread of the queue busy until it is released.
class Obstacle {
 public:
  explicit Obstacle(FairQueue& queue) {
    std::promise<void> begun;
    queue.Post(JobNumber(0), Owner(0),
               [&begun, gone = gone_.get_future().share()] {
                 begun.set_value();
                 gone.wait();
               });
    begun.get_future().wait();
  }
  void LetGo() { gone_.set_value(); }

 private:
  std::promise<void> gone_;
};

// A queue of one thread whose turns set their cost and record their order.
class CostTest : public ::testing::Test {
 protected:
  void Post(int job, int owner, const std::string& name, int cost_ms) {
    queue_.Post(JobNumber(job), Owner(owner), [this, name, cost_ms] {
      order_.push_back(name);
      used_ += milliseconds(cost_ms);
    });
  }

  std::vector<std::string> Order() {
    obstacle_.LetGo();
    queue_.Stop();
    return order_;
  }

  core::Duration used_{};
  std::vector<std::string> order_;
  FairQueue queue_{1, [this] { return used_; }};
  Obstacle obstacle_{queue_};
};

TEST_F(CostTest, JobsTakeTurnsHoweverManyEachHasWaiting) {
  for (int i = 0; i < 3; ++i) Post(1, 1, "flood", 1);
  Post(2, 1, "a", 1);
  Post(3, 1, "b", 1);
  Post(2, 1, "a", 1);
  EXPECT_THAT(Order(), ElementsAre("flood", "a", "b", "flood", "a", "flood"));
}

TEST_F(CostTest, AJobPaysForWhatItsTurnsCost) {
  // The answers of one job take ten times as long.
  for (int i = 0; i < 3; ++i) Post(1, 1, "lists", 10);
  for (int i = 0; i < 12; ++i) Post(2, 1, "sets", 1);
  const std::vector<std::string> order = Order();
  EXPECT_EQ(order[0], "lists");
  EXPECT_EQ(std::count(order.begin(), order.begin() + 11, "sets"), 10);
}

TEST_F(CostTest, SessionsOfAJobTakeTurnsAfterJobsHaveDoneSo) {
  for (int i = 0; i < 3; ++i) {
    Post(1, 1, "first", 1);
    Post(1, 2, "second", 1);
    Post(1, 3, "third", 1);
  }
  Post(2, 1, "alone", 1);
  Post(2, 1, "alone", 1);
  EXPECT_THAT(Order(),
              ElementsAre("first", "alone", "second", "alone", "third", "first",
                          "second", "third", "first", "second", "third"));
}

TEST_F(CostTest, WhoHadNothingToDoHasSavedNothing) {
  // The other two have cost 3 ms each when the late one comes.
  for (int i = 0; i < 6; ++i) {
    if (i == 3) {
      queue_.Post(JobNumber(1), Owner(1), [this] {
        for (int k = 0; k < 3; ++k) Post(3, 1, "late", 1);
      });
    }
    Post(1, 1, "a", 1);
    Post(2, 1, "b", 1);
  }
  const std::vector<std::string> order = Order();
  const auto late = std::find(order.begin(), order.end(), "late");
  ASSERT_NE(late, order.end());
  EXPECT_NE(*(late + 1), "late");
}

TEST_F(CostTest, WhatIsOfNoJobYetHasTurnsToo) {
  Post(1, 1, "a", 1);
  queue_.Post(nullptr, Owner(1), [this] { order_.push_back("unknown"); });
  Post(2, 1, "b", 1);
  EXPECT_THAT(Order(), testing::UnorderedElementsAre("a", "unknown", "b"));
}

TEST_F(CostTest, AJobThatPostsItsNextTurnGoesBehindTheOthers) {
  int left = 3;
  std::function<void()> slice = [&] {
    order_.push_back("flood");
    used_ += milliseconds(1);
    if (--left > 0) queue_.Post(JobNumber(1), Owner(1), slice);
  };
  queue_.Post(JobNumber(1), Owner(1), slice);
  Post(2, 1, "a", 1);
  EXPECT_THAT(Order(), ElementsAre("flood", "a", "flood", "flood"));
}

TEST(FairQueueTest, ALoneJobNeedsNoTurnForWhatIsSmall) {
  FairQueue queue(1);
  FairQueue::Recent recent;
  const core::Instant now = core::Instant() + std::chrono::hours(1);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(queue.AtOnce(JobNumber(1), recent, now));
  }
}

TEST(FairQueueTest, BesideOthersAJobDoesSoMuchAtOnceAndNoMore) {
  FairQueue queue(1);
  FairQueue::Recent busy;
  FairQueue::Recent quiet;
  core::Instant now = core::Instant() + std::chrono::hours(1);
  EXPECT_TRUE(queue.AtOnce(JobNumber(2), quiet, now));
  const auto at_once = [&] {
    int count = 0;
    for (int i = 0; i < 1000; ++i) {
      if (queue.AtOnce(JobNumber(1), busy, now)) ++count;
    }
    return count;
  };
  EXPECT_EQ(at_once(), FairQueue::kMessagesAtOnceMax);
  EXPECT_TRUE(queue.AtOnce(JobNumber(2), quiet, now));
  now += FairQueue::kAtOnceWindow;
  EXPECT_EQ(at_once(), FairQueue::kMessagesAtOnceMax);
  // The other job has been idle for a while.
  now += 2 * FairQueue::kCompanyTime;
  EXPECT_EQ(at_once(), 1000);
}

TEST(FairQueueTest, OneJobLeavesHalfOfTheThreadsToOthers) {
  FairQueue queue(2);
  Obstacle obstacle(queue);  // of job 0
  std::atomic<bool> second = false;
  queue.Post(JobNumber(0), Owner(1), [&second] { second = true; });
  std::promise<bool> ran;
  queue.Post(JobNumber(1), Owner(0), [&] { ran.set_value(second); });
  EXPECT_FALSE(ran.get_future().get());
  obstacle.LetGo();
  queue.Stop();
  EXPECT_TRUE(second);
}

TEST(FairQueueTest, TurnsOfOneOwnerRunOneAfterAnother) {
  FairQueue queue(8);
  int sum = 0;  // would be a race
  for (int i = 0; i < 1000; ++i) {
    queue.Post(JobNumber(1), Owner(1), [&sum, i] {
      if (sum == i) ++sum;
    });
  }
  queue.Stop();
  EXPECT_EQ(sum, 1000);
}

TEST(FairQueueTest, TurnsGiveWayToThreadsThatRead) {
  FairQueue queue(1);
  std::promise<int> policy;
  queue.Post(JobNumber(1), Owner(1),
             [&policy] { policy.set_value(sched_getscheduler(0)); });
  EXPECT_EQ(policy.get_future().get(), SCHED_BATCH);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
}

TEST(FairQueueTest, AfterItsEndATurnRunsAtOnce) {
  FairQueue queue(1);
  queue.Stop();
  bool ran = false;
  queue.Post(JobNumber(1), Owner(1), [&ran] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(FairQueueTest, AnotherThreadRunsWhatWaitsMeanwhile) {
  FairQueue queue(2);
  Obstacle obstacle(queue);
  std::promise<void> ran;
  queue.Post(JobNumber(1), Owner(1), [&ran] { ran.set_value(); });
  ran.get_future().wait();
  obstacle.LetGo();
}

TEST(FairQueueTest, StopRunsWhatTurnsPost) {
  std::atomic<int> ran = 0;
  FairQueue queue(3);
  Obstacle obstacle(queue);
  std::function<void()> task = [&] {
    if (++ran < 100) queue.Post(JobNumber(1), Owner(1), task);
  };
  queue.Post(JobNumber(1), Owner(1), task);
  obstacle.LetGo();
  queue.Stop();
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace muster::coordinator
