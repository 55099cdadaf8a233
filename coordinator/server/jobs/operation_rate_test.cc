#include "coordinator/server/jobs/operation_rate.h"

#include <chrono>

#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

core::Instant At(double seconds) {
  return core::Instant() + std::chrono::duration_cast<core::Duration>(
                               std::chrono::duration<double>(seconds));
}

TEST(OperationRateTest, OneSampleTellsNothing) {
  OperationRate rate;
  EXPECT_EQ(rate.per_second(), 0);
  rate.Sample(At(5), 1000);
  EXPECT_EQ(rate.per_second(), 0);
  rate.Sample(At(5), 2000);
  EXPECT_EQ(rate.per_second(), 0);
}

TEST(OperationRateTest, TellsOfTheLastTenSecondsOnly) {
  OperationRate rate;
  rate.Sample(At(0), 0);
  rate.Sample(At(1), 100);
  EXPECT_EQ(rate.per_second(), 100);
  rate.Sample(At(4), 100);
  EXPECT_EQ(rate.per_second(), 25);
  // The first sample is too old now, the second is not.
  rate.Sample(At(11), 1100);
  EXPECT_EQ(rate.per_second(), 100);
  rate.Sample(At(14), 1100);
  EXPECT_EQ(rate.per_second(), 100);
  rate.Sample(At(30), 1100);
  EXPECT_EQ(rate.per_second(), 0);
}

}  // namespace
}  // namespace muster::coordinator
