#include "dataplane/cpu/shm/calibration.h"

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "dataplane/cpu/shm/streaming.h"
#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

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
  std::thread other([&] {
    EXPECT_EQ(CalibrateRingWrites(memory(), 1), RingWrites::kUnknown);
  });
  EXPECT_NE(CalibrateRingWrites(memory(), 0), RingWrites::kUnknown);
  other.join();
}

TEST_F(CalibrationTest, AMissingRankIsNotWaitedForLong) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point began = Clock::now();
  EXPECT_EQ(CalibrateRingWrites(memory(), 0), RingWrites::kThroughCaches);
  EXPECT_GE(Clock::now() - began, kCalibrationTime);
  EXPECT_EQ(CalibrateRingWrites(memory(), 1), RingWrites::kUnknown);
}

TEST(RingWritesTest, PastTheCachesOnlyIfClearlyFaster) {
  using std::chrono::microseconds;
  EXPECT_EQ(SelectRingWrites(microseconds(4), microseconds(1)),
            RingWrites::kPastCaches);
  EXPECT_EQ(SelectRingWrites(microseconds(4), microseconds(2)),
            RingWrites::kThroughCaches);
  EXPECT_EQ(SelectRingWrites(microseconds(1), microseconds(4)),
            RingWrites::kThroughCaches);
}

TEST(RingWritesTest, TheFirstAnswerIsKept) {
  EXPECT_EQ(KnownRingWrites(), kWritesPastCaches ? RingWrites::kUnknown
                                                 : RingWrites::kThroughCaches);
  SetKnownRingWrites(RingWrites::kThroughCaches);
  EXPECT_EQ(KnownRingWrites(), RingWrites::kThroughCaches);
}

}  // namespace
}  // namespace muster::dataplane::shm
