#include "dataplane/releasable_lock.h"

#include <vector>

#include "base/mutex.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

class ReleasableLockTest : public testing::Test {
 protected:
  // To be called before the release of `lock`.
  void Call(const ReleasableLock& lock, int number) {
    EXPECT_TRUE(lock.is_held());
    calls_.push_back(number);
  }

  Mutex mutex_;
  std::vector<int> calls_;
};

TEST_F(ReleasableLockTest, WhatIsLeftForTheReleaseIsDoneUnderTheLock) {
  ReleasableLock lock(mutex_);
  const auto last = [&] { Call(lock, 1); };
  const auto inner = [&] { Call(lock, 2); };
  lock.BeforeRelease(last);
  lock.ReleaseWith(inner);
  EXPECT_TRUE(lock.is_held());
  lock.Release();
  EXPECT_FALSE(lock.is_held());
  EXPECT_EQ(calls_, (std::vector<int>{1, 2}));
  lock.Release();
  EXPECT_EQ(calls_.size(), 2);
  // It is free.
  MutexLock again(mutex_);
}

TEST_F(ReleasableLockTest, WhatWasCalledOrDroppedIsNotCalledAgain) {
  {
    ReleasableLock lock(mutex_);
    const auto last = [&] { Call(lock, 1); };
    lock.BeforeRelease(last);
    lock.CallLast();
    lock.CallLast();
    EXPECT_FALSE(lock.DropLast());
  }
  EXPECT_EQ(calls_, (std::vector<int>{1}));
  {
    ReleasableLock lock(mutex_);
    const auto last = [&] { Call(lock, 1); };
    const auto inner = [&] { Call(lock, 2); };
    lock.BeforeRelease(last);
    EXPECT_TRUE(lock.DropLast());
    lock.ReleaseWith(inner);
    lock.KeepInner();
  }
  EXPECT_EQ(calls_, (std::vector<int>{1}));
}

}  // namespace
}  // namespace muster::dataplane
