#include "coordinator/server/turn_queue.h"

#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

// The queue compares jobs and never looks into them.
const Job* JobNumber(int number) {
  static const char jobs[10] = {};
  return reinterpret_cast<const Job*>(&jobs[number]);
}

// Keeps one thread of the queue busy until it is let go.
class Obstacle {
 public:
  explicit Obstacle(TurnQueue& queue) {
    std::promise<void> begun;
    queue.Post(JobNumber(0), [&begun, gone = gone_.get_future().share()] {
      begun.set_value();
      gone.wait();
    });
    begun.get_future().wait();
  }
  void LetGo() { gone_.set_value(); }

 private:
  std::promise<void> gone_;
};

TEST(TurnQueueTest, JobsTakeTurnsHoweverManyEachHasWaiting) {
  TurnQueue queue(1);
  std::vector<std::string> order;
  Obstacle obstacle(queue);
  for (int i = 0; i < 3; ++i) {
    queue.Post(JobNumber(1), [&order] { order.push_back("flood"); });
  }
  queue.Post(JobNumber(2), [&order] { order.push_back("a"); });
  queue.Post(JobNumber(3), [&order] { order.push_back("b"); });
  queue.Post(JobNumber(2), [&order] { order.push_back("a"); });
  obstacle.LetGo();
  queue.Stop();
  EXPECT_THAT(order,
              testing::ElementsAre("flood", "a", "b", "flood", "a", "flood"));
}

TEST(TurnQueueTest, AJobThatPostsItsNextTurnGoesBehindTheOthers) {
  TurnQueue queue(1);
  std::vector<std::string> order;
  int left = 3;
  std::function<void()> slice = [&] {
    order.push_back("flood");
    if (--left > 0) queue.Post(JobNumber(1), slice);
  };
  Obstacle obstacle(queue);
  queue.Post(JobNumber(1), slice);
  queue.Post(JobNumber(2), [&order] { order.push_back("a"); });
  obstacle.LetGo();
  queue.Stop();
  EXPECT_THAT(order, testing::ElementsAre("flood", "a", "flood", "flood"));
}

TEST(TurnQueueTest, AnotherThreadRunsWhatWaitsMeanwhile) {
  TurnQueue queue(2);
  Obstacle obstacle(queue);
  std::promise<void> ran;
  queue.Post(JobNumber(1), [&ran] { ran.set_value(); });
  ran.get_future().wait();
  obstacle.LetGo();
}

TEST(TurnQueueTest, StopRunsWhatTurnsPost) {
  std::atomic<int> ran = 0;
  TurnQueue queue(3);
  Obstacle obstacle(queue);
  std::function<void()> turn = [&] {
    if (++ran < 100) queue.Post(JobNumber(1), turn);
  };
  queue.Post(JobNumber(1), turn);
  obstacle.LetGo();
  queue.Stop();
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace muster::coordinator
