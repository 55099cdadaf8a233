#include "coordinator/core/limits.h"

#include <chrono>
#include <string>

#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

std::string Text(const absl::Status& status) { return status.ToString(); }

TEST(LimitsTest, WhatIsAtTheLimitPasses) {
  EXPECT_TRUE(CheckLimit("keys", 3, 3, {"key", "c"}).ok());
}

TEST(LimitsTest, TheTextNamesTheOfferAndTheFlag) {
  EXPECT_EQ(Text(CheckLimit("keys", 3, 4, {"key", "c"})),
            "RESOURCE_EXHAUSTED: limit keys is 3, offered 4 (key \"c\"); the "
            "coordinator's --limit_keys sets it");
  EXPECT_EQ(Text(CheckLimit("world_size", 4, 5, {"member", "b"})),
            "RESOURCE_EXHAUSTED: limit world_size is 4, offered 5 (member "
            "\"b\")");
  EXPECT_EQ(Text(CheckLimit("key_bytes", 4096, 5000)),
            "RESOURCE_EXHAUSTED: limit key_bytes is 4096, offered 5000");
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
  ASSERT_TRUE(quota.Take({"barrier", "a"}).ok());
  EXPECT_EQ(Text(quota.Take({"barrier", "b"})),
            "RESOURCE_EXHAUSTED: limit waiters is 1, offered 2 (barrier "
            "\"b\"); the coordinator's --limit_waiters sets it");
  quota.Release();
  EXPECT_TRUE(quota.Take().ok());
}

}  // namespace
}  // namespace muster::coordinator::core
