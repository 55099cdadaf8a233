#include "client/parallel/shard/call_order.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;

const std::vector<std::string> kNames = {"a", "b"};

TEST(CallOrderTest, TheSameCallsHaveTheSameHeaders) {
  CallOrder one;
  CallOrder other;
  for (const int group : {0, 1, 1, 0}) {
    EXPECT_EQ(one.Add(CallKind::kGather, group),
              other.Add(CallKind::kGather, group));
  }
  EXPECT_NE(one.Add(CallKind::kGather, 0), other.Add(CallKind::kReduce, 0));
  // Also afterwards.
  EXPECT_NE(one.Add(CallKind::kGather, 1), other.Add(CallKind::kGather, 1));
}

TEST(CallOrderTest, TwoCallsInAnotherOrderHaveAnotherDigest) {
  CallOrder one;
  CallOrder other;
  one.Add(CallKind::kReduce, 0);
  one.Add(CallKind::kReduce, 1);
  other.Add(CallKind::kReduce, 1);
  other.Add(CallKind::kReduce, 0);
  EXPECT_NE(one.digest(), other.digest());
}

TEST(CallOrderTest, TheTextHasTheCallsOfTheStep) {
  CallOrder calls;
  calls.Add(CallKind::kGather, 1);
  calls.BeginStep();
  calls.Add(CallKind::kGather, 0);
  calls.Add(CallKind::kReduce, 1);
  EXPECT_THAT(calls.ToText(kNames),
              ElementsAre("gathered \"a\"", "reduced \"b\""));
}

TEST(CallOrderTest, ADifferenceNamesBothRanksAndTheirGroups) {
  CallOrder zero;
  CallOrder one;
  std::vector<CallHeader> headers = {zero.Add(CallKind::kGather, 0),
                                     one.Add(CallKind::kGather, 0)};
  EXPECT_EQ(DescribeDifference(headers, {4, 7}, kNames), "");
  headers = {zero.Add(CallKind::kGather, 0), one.Add(CallKind::kGather, 1)};
  EXPECT_EQ(DescribeDifference(headers, {4, 7}, kNames),
            "global rank 7 gathers \"b\" as call 2, global rank 4 gathers "
            "\"a\" as call 2");
  headers = {zero.Add(CallKind::kGather, 0), one.Add(CallKind::kGather, 0)};
  EXPECT_EQ(DescribeDifference(headers, {4, 7}, kNames),
            "global rank 7 gathers \"a\" as call 3, global rank 4 gathers "
            "\"a\" as call 3, after calls that differ");
}

}  // namespace
}  // namespace muster::internal
