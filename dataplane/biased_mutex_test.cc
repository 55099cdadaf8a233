#include "dataplane/biased_mutex.h"

#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <thread>

#include "base/blocked.h"
#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using muster::Interrupt;
using muster::ThisThreadId;

// Whether this thread locks it by the bias.
bool IsTakenBiased(BiasedMutex& mutex) {
  OftenLock lock(mutex);
  return mutex.is_biased();
}

// The number of locks in a row after which it is biased; 0: never.
int LockingsUntilBiased(BiasedMutex& mutex) {
  for (int time = 1; time <= 2 * BiasedMutex::kStreak; ++time) {
    if (IsTakenBiased(mutex)) return time;
  }
  return 0;
}

// A function of its own, because clang's analysis refuses this.
void LockAgain(BiasedMutex& mutex) MUSTER_NO_THREAD_SAFETY_ANALYSIS {
  mutex.Lock();
}

void RunElsewhere(const std::function<void()>& call) {
  std::thread(call).join();
}

// The result of `call` in a forked child.
bool HoldsInChild(const std::function<bool()>& call) {
  const pid_t child = fork();
  if (child == 0) _exit(call() ? 0 : 1);
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

// Forbids membarrier to this thread and the threads that it starts, for good.
// Returns false if that is not possible.
bool ForbidMembarrier() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Needs membarrier: without it a BiasedMutex is never biased.
class BiasedMutexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const int64_t commands =
        syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    ASSERT_GT(commands, 0);
    ASSERT_NE(commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0);
  }

  BiasedMutex mutex_;
};

TEST_F(BiasedMutexTest, IsBiasedWhenItsHomeHasHadItOftenInARow) {
  EXPECT_EQ(LockingsUntilBiased(mutex_), BiasedMutex::kStreak);
  EXPECT_TRUE(IsTakenBiased(mutex_));
}

TEST_F(BiasedMutexTest, AnotherThreadTakesTheBiasAway) {
  for (int time = 0; time < 10; ++time) {
    EXPECT_EQ(LockingsUntilBiased(mutex_), BiasedMutex::kStreak);
    RunElsewhere([&] { EXPECT_FALSE(IsTakenBiased(mutex_)); });
    EXPECT_FALSE(IsTakenBiased(mutex_));
    // The locks must be in a row.
    RunElsewhere([&] { EXPECT_FALSE(IsTakenBiased(mutex_)); });
  }
}

// For example a background thread that only watches the clock.
TEST_F(BiasedMutexTest, WhoDoesNotSayThatItIsOftenIsNotTheHome) {
  for (int time = 0; time < 2 * BiasedMutex::kStreak; ++time) {
    MutexLock lock(mutex_);
    EXPECT_FALSE(mutex_.is_biased());
  }
  RunElsewhere([&] {
    EXPECT_EQ(LockingsUntilBiased(mutex_), BiasedMutex::kStreak);
    // Lock, too, uses the bias of the home.
    MutexLock lock(mutex_);
    EXPECT_TRUE(mutex_.is_biased());
  });
}

TEST_F(BiasedMutexTest, ToLockItTwiceFails) {
  EXPECT_GT(LockingsUntilBiased(mutex_), 0);
  mutex_.Lock();
  EXPECT_DEATH(LockAgain(mutex_), "a thread has locked a mutex that it has");
  mutex_.Unlock();
}

TEST_F(BiasedMutexTest, HasOneHome) {
  EXPECT_GT(LockingsUntilBiased(mutex_), 0);
  RunElsewhere([&] { EXPECT_EQ(LockingsUntilBiased(mutex_), 0); });
  EXPECT_GT(LockingsUntilBiased(mutex_), 0);
}

TEST_F(BiasedMutexTest, WhoTakesItByTurnsDoesNotMakeItBiased) {
  std::atomic<int> turn = 0;
  const auto take = [&](int own) {
    for (int time = 0; time < 2 * BiasedMutex::kStreak; ++time) {
      while (turn != own) std::this_thread::yield();
      EXPECT_FALSE(IsTakenBiased(mutex_));
      turn = 1 - own;
    }
  };
  std::thread other(take, 1);
  take(0);
  other.join();
}

// While the home is inside, with the bias and without.
TEST_F(BiasedMutexTest, AnotherThreadWaitsForTheHome) {
  for (const bool is_biased : {false, true}) {
    if (is_biased) {
      EXPECT_GT(LockingsUntilBiased(mutex_), 0);
    }
    std::atomic<int64_t> id = 0;
    std::atomic<bool> has_it = false;
    std::thread other;
    {
      MutexLock lock(mutex_);
      EXPECT_EQ(mutex_.is_biased(), is_biased);
      other = std::thread([&] {
        errno = EDOM;
        id = ThisThreadId();
        MutexLock own(mutex_);
        EXPECT_EQ(errno, EDOM);
        has_it = true;
      });
      Interrupt(other, id);
      EXPECT_FALSE(has_it);
    }
    other.join();
    EXPECT_TRUE(has_it);
  }
}

// The other thread takes the lock each time it is biased. Before that it writes
// a variable that the home writes just before it locks: the home's processor
// then delays that store, and with it the store that says that the home is
// inside.
TEST_F(BiasedMutexTest, OneThreadHasItThoughItIsBiasedAgainAndAgain) {
  constexpr int kTimes = 100;
  int64_t count = 0;  // Guarded by the mutex.
  int64_t lockings = 0;
  std::atomic<int64_t> written = 0;
  std::atomic<int64_t> biased = 0;  // `lockings` when last biased.
  std::atomic<bool> goes_on = true;
  std::thread other([&] {
    for (int time = 0; time < kTimes; ++time) {
      const int64_t before = biased;
      while (biased == before) written = time;
      MutexLock lock(mutex_);
      ++count;
    }
    goes_on = false;
  });
  while (goes_on) {
    written.store(lockings, std::memory_order_relaxed);
    OftenLock lock(mutex_);
    ++count;
    ++lockings;
    if (lockings % 512 == 0 && mutex_.is_biased()) biased = lockings;
  }
  other.join();
  EXPECT_EQ(count, lockings + kTimes);
}

TEST_F(BiasedMutexTest, AChildThatWasForkedOffHasItAsItsParentHadIt) {
  EXPECT_GT(LockingsUntilBiased(mutex_), 0);
  EXPECT_TRUE(HoldsInChild([&] {
    const bool was_biased = IsTakenBiased(mutex_);
    bool is_biased_elsewhere = true;
    RunElsewhere([&] { is_biased_elsewhere = IsTakenBiased(mutex_); });
    return was_biased && !is_biased_elsewhere && !IsTakenBiased(mutex_);
  }));
}

TEST_F(BiasedMutexTest, IsBiasedNoMoreOnceTheSystemForbidsTheFence) {
  EXPECT_GT(LockingsUntilBiased(mutex_), 0);
  EXPECT_TRUE(HoldsInChild([&] {
    if (!ForbidMembarrier() || !IsTakenBiased(mutex_)) return false;
    bool is_biased_elsewhere = true;
    RunElsewhere([&] { is_biased_elsewhere = IsTakenBiased(mutex_); });
    return !is_biased_elsewhere && LockingsUntilBiased(mutex_) == 0;
  }));
}

}  // namespace
}  // namespace muster::dataplane
