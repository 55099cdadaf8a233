#include "dataplane/backends/gloo/looking.h"

#include <chrono>

#include "gtest/gtest.h"

namespace muster::dataplane::gloo_internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(LookTimeTest, AtFirstAsLongAsWakingUpTakes) {
  EXPECT_EQ(LookTime().value(), kLookTime);
}

TEST(LookTimeTest, WhatCameSoonAfterAllIsLookedForTwiceAsLong) {
  LookTime time;
  time.HasSlept(microseconds(130));
  EXPECT_EQ(time.value(), microseconds(260));
  time.HasSlept(microseconds(400));
  EXPECT_EQ(time.value(), microseconds(800));
  // Never for longer than that.
  time.HasSlept(microseconds(1'900));
  EXPECT_EQ(time.value(), LookTime::kMost);
  time.HasSlept(LookTime::kMost);
  EXPECT_EQ(time.value(), LookTime::kMost);
}

TEST(LookTimeTest, WhatCameLateIsNotWorthIt) {
  LookTime time;
  time.HasSlept(microseconds(130));
  time.HasSlept(LookTime::kMost + microseconds(1));
  EXPECT_EQ(time.value(), kLookTime);
  time.HasSlept(microseconds(200));
  EXPECT_EQ(time.value(), microseconds(400));
  time.HasSlept(seconds(1000));
  EXPECT_EQ(time.value(), kLookTime);
}

TEST(LookTimeTest, NeverForLessThanAtFirst) {
  LookTime time;
  time.HasSlept(microseconds(1));
  EXPECT_EQ(time.value(), kLookTime);
  time.HasSlept(milliseconds(0));
  EXPECT_EQ(time.value(), kLookTime);
}

}  // namespace
}  // namespace muster::dataplane::gloo_internal
