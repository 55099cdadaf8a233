#include "dataplane/releasable_lock.h"

#include <vector>

#include "dataplane/biased_mutex.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

class ReleasableLockTest : public testing::Test {
 protected:
  // Biases the mutex, so that its holder can check that it is held.
  ReleasableLockTest() {
    for (int time = 0; time < BiasedMutex::kStreak; ++time) {
      OftenLock lock(mutex_);
    }
  }

  // To be called under the lock.
  void Call(int number) {
    EXPECT_TRUE(mutex_.is_biased());
    calls_.push_back(number);
  }

  BiasedMutex mutex_;
  std::vector<int> calls_;
};

TEST_F(ReleasableLockTest, WhatIsLeftForTheReleaseIsDoneUnderTheLock) {
  const auto last = [&] { Call(1); };
  const auto inner = [&] { Call(2); };
  ReleasableLock lock(mutex_);
  lock.BeforeRelease(last);
  lock.ReleaseWith(inner);
  EXPECT_TRUE(lock.is_held());
  lock.Release();
  EXPECT_FALSE(lock.is_held());
  EXPECT_EQ(calls_, (std::vector<int>{1, 2}));
  lock.Release();
  EXPECT_EQ(calls_.size(), 2);
  EXPECT_FALSE(mutex_.is_biased());
}

TEST_F(ReleasableLockTest, WhatWasCalledOrDroppedIsNotCalledAgain) {
  const auto last = [&] { Call(1); };
  const auto inner = [&] { Call(2); };
  {
    ReleasableLock lock(mutex_);
    lock.BeforeRelease(last);
    lock.CallLast();
    lock.CallLast();
    EXPECT_FALSE(lock.DropLast());
  }
  EXPECT_EQ(calls_, (std::vector<int>{1}));
  {
    ReleasableLock lock(mutex_);
    lock.BeforeRelease(last);
    EXPECT_TRUE(lock.DropLast());
    lock.ReleaseWith(inner);
    lock.KeepInner();
  }
  EXPECT_EQ(calls_, (std::vector<int>{1}));
}

}  // namespace
}  // namespace muster::dataplane
