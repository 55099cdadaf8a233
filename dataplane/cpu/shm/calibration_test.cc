#include "dataplane/cpu/shm/calibration.h"

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "dataplane/cpu/transport/process_memory.h"
#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Enough on a machine that is busy with other things.
constexpr std::chrono::minutes kLong{1};

struct alignas(64) Line {
  std::byte bytes[64] = {};
};

class CalibrationTest : public ::testing::Test {
 protected:
  void* memory() { return memory_.data(); }

 private:
  std::vector<Line> memory_ =
      std::vector<Line>(kCalibrationBytes / sizeof(Line));
};

TEST_F(CalibrationTest, TwoRanksFindAnAnswer) {
  // The other rank is a thread here, so its memory is this process's.
  const cpu::Mark mark(7);
  const cpu::PeerMemory peer(mark.place(), 7);
  std::thread other(
      [&] { EXPECT_FALSE(Calibrate(memory(), 1, &peer, kLong).is_known); });
  const Calibration found = Calibrate(memory(), 0, &peer, kLong);
  EXPECT_TRUE(found.is_known);
  EXPECT_TRUE(found.is_measured);
  other.join();
}

TEST_F(CalibrationTest, AMissingRankIsNotWaitedForLong) {
  const Clock::time_point began = Clock::now();
  const Calibration found = Calibrate(memory(), 0, /*peer=*/nullptr);
  EXPECT_TRUE(found.is_known);
  EXPECT_FALSE(found.is_measured);
  EXPECT_FALSE(found.writes_past_caches);
  EXPECT_FALSE(found.reads_are_fast);
  EXPECT_GE(Clock::now() - began, kCalibrationTime);
}

TEST_F(CalibrationTest, MemoryThatCannotBeReadIsSlow) {
  const cpu::Mark mark(7);
  const cpu::PeerMemory other_mark(mark.place(), 8);
  std::thread other([&] { Calibrate(memory(), 1, &other_mark, kLong); });
  const Calibration found = Calibrate(memory(), 0, &other_mark, kLong);
  EXPECT_TRUE(found.is_measured);
  EXPECT_FALSE(found.reads_are_fast);
  other.join();
}

TEST(AnswersTest, PastTheCachesOnlyIfClearlyFaster) {
  EXPECT_TRUE(ShouldWritePastCaches(microseconds(4), microseconds(1)));
  EXPECT_FALSE(ShouldWritePastCaches(microseconds(4), microseconds(2)));
  EXPECT_FALSE(ShouldWritePastCaches(microseconds(1), microseconds(4)));
}

TEST(AnswersTest, ReadsAreFastOnlyIfClearlyFaster) {
  EXPECT_TRUE(AreReadsFast(microseconds(20), microseconds(17)));
  EXPECT_FALSE(AreReadsFast(microseconds(20), microseconds(19)));
  EXPECT_FALSE(AreReadsFast(microseconds(17), microseconds(20)));
}

TEST(AnswersTest, TheFirstAnswerIsKept) {
  EXPECT_FALSE(KnownCalibration().is_known);
  SetKnownCalibration({.is_known = true, .reads_are_fast = true});
  SetKnownCalibration({.is_known = true, .writes_past_caches = true});
  EXPECT_TRUE(KnownCalibration().is_known);
  EXPECT_FALSE(KnownCalibration().writes_past_caches);
  EXPECT_TRUE(KnownCalibration().reads_are_fast);
}

}  // namespace
}  // namespace muster::dataplane::shm
