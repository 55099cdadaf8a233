#include "client/parallel/data/step_log.h"

#include <gtest/gtest.h>

#include <chrono>

namespace muster::internal {
namespace {

using std::chrono::nanoseconds;

base::Instant At(int64_t time) { return base::Instant(nanoseconds(time)); }

TEST(StepLogTest, CommunicationIsTheTimeInWhichABucketIsReduced) {
  // Buckets from 100 to 140, 110 to 120 and 130 to 160; idle; from 300 to 400,
  // within which another ends. The last gradient came at 330.
  const DataParallel::Times times =
      ComputeTimes({.first_ready = At(90),
                    .last_ready = At(330),
                    .reductions = {{At(300), At(400)},
                                   {At(110), At(120)},
                                   {At(100), At(140)},
                                   {At(130), At(160)},
                                   {At(350), At(390)}}});
  EXPECT_EQ(times.backward_compute_time, nanoseconds(240));
  EXPECT_EQ(times.backward_comm_time, nanoseconds(60 + 100));
  EXPECT_EQ(times.backward_compute_comm_overlap_time, nanoseconds(60 + 30));
  EXPECT_EQ(times.exposed_comm_time, nanoseconds(70));
}

TEST(StepLogTest, WhatBeginsAfterTheLastGradientIsNotHidden) {
  const DataParallel::Times times =
      ComputeTimes({.first_ready = At(10),
                    .last_ready = At(20),
                    .reductions = {{At(20), At(50)}, {At(60), At(61)}}});
  EXPECT_EQ(times.backward_comm_time, nanoseconds(31));
  EXPECT_EQ(times.backward_compute_comm_overlap_time, nanoseconds(0));
  EXPECT_EQ(times.exposed_comm_time, nanoseconds(31));
}

}  // namespace
}  // namespace muster::internal
