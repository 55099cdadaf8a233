#include "dataplane/quick_clock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;

// A fake machine whose time advances only by the test, and by 10 ns per
// reading.
struct Machine {
  bool IsUsable() { return is_usable; }
  uint64_t Ticks() {
    ++ticks_read;
    Pass(10ns);
    return static_cast<uint64_t>(ticks);
  }
  Instant Time() {
    ++times_read;
    Pass(10ns + interrupted_before);
    const Instant read = time;
    Pass(interrupted_after);
    return read;
  }
  std::atomic<uint64_t>& Rate() { return rate; }

  void Pass(nanoseconds passed) {
    time += passed;
    ticks += static_cast<double>(passed.count()) * ticks_per_ns;
  }

  bool is_usable = true;
  double ticks_per_ns = 2.6;
  double ticks = 1e12;
  Instant time{7s};
  nanoseconds interrupted_before{0};
  nanoseconds interrupted_after{0};
  int ticks_read = 0;
  int times_read = 0;
  std::atomic<uint64_t> rate{0};
};

class QuickClockTest : public testing::Test {
 protected:
  // The error of a call. The real time is any time between its start and end.
  nanoseconds ErrorOfCall() {
    const Instant start = machine_.time;
    const Instant now = clock_.Now(machine_);
    EXPECT_GE(now, last_) << "went backwards";
    last_ = now;
    return std::max({start - now, now - machine_.time, nanoseconds(0)});
  }

  // The largest error of the calls in `time`, with a pause after each.
  nanoseconds ErrorIn(nanoseconds time, nanoseconds pause = 20us) {
    nanoseconds error{0};
    for (const Instant end = machine_.time + time; machine_.time < end;) {
      error = std::max(error, ErrorOfCall());
      machine_.Pass(pause);
    }
    return error;
  }

  // Whether a call does not read the real clock. Makes another call before,
  // which may have to renew the anchor.
  bool IsQuick() {
    ErrorOfCall();
    const int times_read = machine_.times_read;
    ErrorOfCall();
    return machine_.times_read == times_read;
  }

  Machine machine_;
  QuickClock clock_;
  Instant last_;
};

TEST_F(QuickClockTest, AsksTheClockUntilTheRateIsKnown) {
  EXPECT_EQ(ErrorIn(200us), 0ns);
  EXPECT_FALSE(IsQuick());
  EXPECT_EQ(machine_.rate, 0u);
}

TEST_F(QuickClockTest, ReadsOnlyTheCounterWhenTheRateIsKnown) {
  ErrorIn(3ms);
  EXPECT_TRUE(IsQuick());
  const int times_read = machine_.times_read;
  EXPECT_LE(ErrorIn(100ms), 20ns);
  EXPECT_LE(machine_.times_read - times_read, 101) << "one in a millisecond";
}

TEST_F(QuickClockTest, ANewThreadTakesTheRateThatAnotherFound) {
  ErrorIn(3ms);
  clock_ = QuickClock();
  EXPECT_TRUE(IsQuick()) << "from its second call on";
  EXPECT_LE(ErrorIn(10ms), 20ns);
}

TEST_F(QuickClockTest, StandsStillAfterARateThatWasTooHigh) {
  ErrorIn(3ms);
  // NTP may do this: the rate is 0.05 % too high from now on.
  machine_.ticks_per_ns *= 1.0005;
  // Calls without a pause, so that the next anchor is behind the last call.
  const nanoseconds error = ErrorIn(2ms, /*pause=*/0ns);
  EXPECT_GT(error, 400ns) << "nothing was tested";
  EXPECT_LT(error, 1us);
  EXPECT_LE(ErrorIn(10ms), 20ns) << "it did not learn";
  EXPECT_TRUE(IsQuick());
}

TEST_F(QuickClockTest, FollowsACounterThatJumps) {
  ErrorIn(3ms);
  for (const nanoseconds jump : {nanoseconds(1h), nanoseconds(2ms),
                                 nanoseconds(700us), nanoseconds(30us)}) {
    for (const int sign : {1, -1}) {
      machine_.ticks += static_cast<double>(sign * jump.count()) * 2.6;
      EXPECT_LE(ErrorIn(2ms), std::min(jump + 1us, nanoseconds(1ms)));
      EXPECT_LE(ErrorIn(3ms), 1us) << sign * jump.count();
      EXPECT_TRUE(IsQuick());
    }
  }
}

// A thread that moves between two processors whose counters differ.
TEST_F(QuickClockTest, IsAsFarOffAsCountersThatDisagree) {
  constexpr nanoseconds kApart = 300us;
  ErrorIn(3ms);
  int sign = 1;
  for (int move = 0; move < 1000; ++move) {
    machine_.ticks += static_cast<double>(sign * kApart.count()) * 2.6;
    sign = -sign;
    ASSERT_LE(ErrorIn(nanoseconds(move * 7us)), kApart + 1us) << move;
  }
  EXPECT_LE(ErrorIn(3ms), kApart + 1us);
  EXPECT_LE(ErrorIn(3ms), 1us);
  EXPECT_TRUE(IsQuick());
}

TEST_F(QuickClockTest, FollowsACounterWhoseRateChanges) {
  ErrorIn(3ms);
  for (const double ticks_per_ns : {1.3, 4.0, 3.9, 2.6}) {
    const double factor = machine_.ticks_per_ns / ticks_per_ns;
    machine_.ticks_per_ns = ticks_per_ns;
    EXPECT_LE(ErrorIn(4ms), nanoseconds(1ms) * std::max(factor - 1, 1.0));
    EXPECT_LE(ErrorIn(10ms), 20ns) << ticks_per_ns;
    EXPECT_TRUE(IsQuick());
  }
}

TEST_F(QuickClockTest, ACounterThatNoProcessorHasIsNotUsed) {
  for (const double ticks_per_ns : {0.0, 0.01, 100.0, -2.6}) {
    machine_.ticks_per_ns = ticks_per_ns;
    ErrorIn(3ms);
    EXPECT_EQ(ErrorIn(10ms), 0ns) << ticks_per_ns;
    EXPECT_FALSE(IsQuick()) << ticks_per_ns;
  }
}

TEST_F(QuickClockTest, AnInterruptedReadingIsNoAnchor) {
  uint64_t seed = 1;
  int quick = 0;
  for (int i = 0; i < 20000; ++i) {
    // Interrupts every other reading, for up to 100 us, before or after the
    // clock.
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const nanoseconds length(static_cast<int64_t>((seed >> 33) % 100000));
    machine_.interrupted_before = seed >> 62 == 0 ? length : 0ns;
    machine_.interrupted_after = seed >> 62 == 1 ? length : 0ns;
    ASSERT_LE(ErrorOfCall(), 500ns) << i;
    quick += IsQuick() ? 1 : 0;
    machine_.Pass(20us);
  }
  EXPECT_GT(quick, 15000);
}

TEST_F(QuickClockTest, WithoutAUsableCounterItIsTheClock) {
  machine_.is_usable = false;
  EXPECT_EQ(ErrorIn(100ms), 0ns);
  EXPECT_FALSE(IsQuick());
  EXPECT_EQ(machine_.ticks_read, 0);
  EXPECT_EQ(machine_.rate, 0u);
}

TEST(NamesCycleCounterTest, OnlyIfTheFileSaysSo) {
  const std::string path = testing::TempDir() + "/clocksource";
  EXPECT_FALSE(NamesCycleCounter(path.c_str())) << "there is no file";
  for (const char* counter :
       {"tsc\n", "kvm-clock\n", "hyperv_clocksource_tsc_page\n"}) {
    std::ofstream(path) << counter;
    EXPECT_TRUE(NamesCycleCounter(path.c_str())) << counter;
  }
  for (const char* other : {"tsc-early\n", "hyperv_clocksource_msr\n", "xen\n",
                            "hpet\n", "tsc", "\n", ""}) {
    std::ofstream(path) << other;
    EXPECT_FALSE(NamesCycleCounter(path.c_str())) << other;
  }
  unlink(path.c_str());
}

// Whether many calls were between the clock before and after them, allowing for
// the largest error.
bool IsLikeTheClock() {
  Instant last;
  for (int i = 0; i < 200000; ++i) {
    const Instant before = Clock::now();
    const Instant now = QuickNow();
    const Instant after = Clock::now();
    if (now < before - 1ms || now > after + 1ms || now < last) return false;
    last = now;
  }
  return true;
}

TEST(QuickNowTest, IsLikeTheClockInEveryThread) {
  std::atomic<int> good{0};
  std::array<std::thread, 4> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([&good] { good += IsLikeTheClock() ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
}

TEST(QuickNowTest, IsLikeTheClockInAForkedChild) {
  EXPECT_TRUE(IsLikeTheClock());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(IsLikeTheClock() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace muster::dataplane
