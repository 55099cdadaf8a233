#include "coordinator/core/limits.h"

#include <chrono>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

std::string Text(const Status& status) { return status.ToString(); }

TEST(LimitsTest, WhatIsAtTheLimitPasses) {
  EXPECT_TRUE(CheckLimit("keys", 3, 3, {"key", "c"}).ok());
}

TEST(LimitsTest, TheTextNamesTheOfferAndTheFlag) {
  EXPECT_EQ(Text(CheckLimit("keys", 3, 4, {"key", "c"})),
            "RESOURCE_EXHAUSTED: limit keys is 3, offered 4 (key \"c\"); a "
            "coordinator inside a program, as a TcpStore's, keeps this limit, "
            "muster-coordinator's --limit_keys sets another");
  EXPECT_EQ(Text(CheckLimit("world_size", 4, 5, {"member", "b"})),
            "RESOURCE_EXHAUSTED: limit world_size is 4, offered 5 (member "
            "\"b\")");
  EXPECT_EQ(Text(CheckLimit("key_bytes", 4096, 5000)),
            "RESOURCE_EXHAUSTED: limit key_bytes is 4096, offered 5000");
  EXPECT_EQ(Text(CheckLimit("key_bytes", 1, 2, {"answers", ""})),
            "RESOURCE_EXHAUSTED: limit key_bytes is 1, offered 2 (answers)");
}

TEST(LimitsTest, WhoSendsATooLargeValueIsToldWhatToDo) {
  EXPECT_THAT(
      Text(CheckLimit("value_bytes", 4, 5, {"key", "k"})),
      testing::HasSubstr("limit value_bytes is 4, offered 5 (key \"k\"); "
                         "divide the value among several keys; a coordinator "
                         "inside a program, as a TcpStore's, keeps this limit, "
                         "muster-coordinator's --limit_value_bytes sets"));
}

TEST(LimitsTest, LongAndOddNamesAreCutAndEscaped) {
  EXPECT_EQ(
      Text(CheckLimit("key_bytes", 64, 65, {"key", std::string(65, 'k')})),
      "RESOURCE_EXHAUSTED: limit key_bytes is 64, offered 65 (key \"" +
          std::string(64, 'k') + "...\")");
  EXPECT_EQ(Text(CheckLimit("key_bytes", 1, 2, {"key", "\n\""})),
            "RESOURCE_EXHAUSTED: limit key_bytes is 1, offered 2 (key "
            "\"\\n\\\"\")");
}

TEST(LimitsTest, TheQuotaOfWaitersNamesWhoCameTooLate) {
  WaiterQuota quota(1);
  ASSERT_TRUE(quota.Take(0, {"barrier", "a"}).ok());
  EXPECT_EQ(Text(quota.Take(0, {"barrier", "b"})),
            "RESOURCE_EXHAUSTED: limit waiters is 1, offered 2 (barrier "
            "\"b\")" +
                LimitAdvice("waiters"));
  quota.Release(0);
  EXPECT_TRUE(quota.Take(0).ok());
}

TEST(LimitsTest, TheQuotaOfWaitersCountsWhatTheyWeigh) {
  WaiterQuota quota(10, 100);
  ASSERT_TRUE(quota.Take(60).ok());
  EXPECT_EQ(Text(quota.Take(41, {"key", "k"})),
            "RESOURCE_EXHAUSTED: limit waiter_bytes is 100, offered 101 (key "
            "\"k\")" +
                LimitAdvice("waiter_bytes"));
  EXPECT_EQ(quota.parked(), 1);
  ASSERT_TRUE(quota.Take(40).ok());
  quota.Release(60);
  EXPECT_EQ(quota.bytes(), 40);
}

TEST(LimitsTest, ANoticeShowsTheBeginningOfALongText) {
  EXPECT_EQ(TextInNotice("say \"no\"\n"), "\"say \\\"no\\\"\\n\"");
  EXPECT_EQ(TextInNotice(std::string(256, 'x')),
            "\"" + std::string(256, 'x') + "\"");
  EXPECT_EQ(TextInNotice(std::string(257, 'x')),
            "\"" + std::string(256, 'x') + "...\"");
}

}  // namespace
}  // namespace muster::coordinator::core
