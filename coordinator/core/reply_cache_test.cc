#include "coordinator/core/reply_cache.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/limits.h"
#include "coordinator/core/testing/core_test_util.h"
#include "coordinator/core/total_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using State = ReplyCache::State;

std::vector<SequenceNumber> Numbers(std::vector<uint64_t> numbers) {
  return std::vector<SequenceNumber>(numbers.begin(), numbers.end());
}

class ReplyCacheTest : public testing::Test {
 protected:
  StatusCode Find(uint64_t number) {
    return cache_.Find(SequenceNumber(number), "Add", limits_).status().code();
  }
  State GetState(uint64_t number) {
    return (*cache_.Find(SequenceNumber(number), "Add", limits_))->state;
  }
  void Done(uint64_t number, const std::string& text = "") {
    ASSERT_EQ(Find(number), StatusCode::kOk);
    cache_.SetDone(SequenceNumber(number),
                   Reply{WaiterId(1), NotFoundError(text), {}});
  }
  StatusCode Acknowledge(uint64_t through,
                         const std::vector<uint64_t>& unanswered = {}) {
    return cache_
        .Acknowledge(SequenceNumber(through), Numbers(unanswered), limits_)
        .code();
  }

  Limits limits_{.retained_replies = 4, .retained_reply_bytes = 100};
  ReplyCache cache_;
};

TEST_F(ReplyCacheTest, KeepsWhatIsUnansweredBelowTheWindow) {
  Done(1);
  ASSERT_EQ(Find(2), StatusCode::kOk);
  cache_.SetParked(SequenceNumber(2), WaiterId(7));
  Done(3);
  EXPECT_EQ(Acknowledge(3, {2}), StatusCode::kOk);
  EXPECT_EQ(Find(1), StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetState(2), State::kParked);
  EXPECT_EQ(Find(3), StatusCode::kFailedPrecondition);
  Done(2, "late");
  EXPECT_EQ(GetState(2), State::kDone);
  EXPECT_EQ(cache_.size(), 1);
  EXPECT_EQ(cache_.bytes(), 4);
  EXPECT_EQ(Acknowledge(3), StatusCode::kOk);
  EXPECT_EQ(Find(2), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache_.size(), 0);
  EXPECT_EQ(cache_.bytes(), 0);
}

TEST_F(ReplyCacheTest, ANumberBelowTheWindowKeepsItsMethodToo) {
  ASSERT_EQ(Find(1), StatusCode::kOk);
  cache_.SetParked(SequenceNumber(1), WaiterId(7));
  Done(2);
  ASSERT_EQ(Acknowledge(2, {1}), StatusCode::kOk);
  EXPECT_EQ(cache_.Find(SequenceNumber(1), "Set", limits_).status(),
            InvalidArgumentError("sequence 1 of Set was used for Add before"));
  EXPECT_EQ(Find(1), StatusCode::kOk);
}

// The number's retry comes on a new connection, after later ones were
// acknowledged.
TEST_F(ReplyCacheTest, AnUnansweredNumberThatNeverCameIsNew) {
  EXPECT_EQ(Acknowledge(100, {98}), StatusCode::kOk);
  EXPECT_EQ(GetState(98), State::kNew);
  EXPECT_EQ(Find(99), StatusCode::kFailedPrecondition);
}

TEST_F(ReplyCacheTest, WhatWasAcknowledgedStaysSo) {
  Done(1);
  Done(2);
  EXPECT_EQ(Acknowledge(2), StatusCode::kOk);
  EXPECT_EQ(Acknowledge(2, {1}), StatusCode::kOk);
  EXPECT_EQ(Find(1), StatusCode::kFailedPrecondition);
}

TEST_F(ReplyCacheTest, AnAcknowledgementThatWasOvertakenKeepsTheYounger) {
  Done(1);
  Done(4);
  EXPECT_EQ(Acknowledge(4, {1, 4}), StatusCode::kOk);
  EXPECT_EQ(Acknowledge(2, {1}), StatusCode::kOk);
  EXPECT_EQ(GetState(1), State::kDone);
  EXPECT_EQ(GetState(4), State::kDone);
}

TEST_F(ReplyCacheTest, UnansweredNumbersCountTowardsTheLimit) {
  EXPECT_EQ(Acknowledge(10, {1, 2, 3, 4, 5}), StatusCode::kResourceExhausted);
  EXPECT_EQ(GetState(1), State::kNew);
  EXPECT_EQ(Acknowledge(10, {1, 2, 3}), StatusCode::kOk);
  EXPECT_EQ(Find(11), StatusCode::kOk);
  EXPECT_EQ(Find(12), StatusCode::kResourceExhausted);
  // A hostile member gets no more by naming other numbers each time.
  EXPECT_EQ(Acknowledge(20, {12, 13, 14, 15}), StatusCode::kOk);
  EXPECT_EQ(Find(3), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Find(21), StatusCode::kResourceExhausted);
}

TEST_F(ReplyCacheTest, AnAcknowledgementThatCannotBeChangesNothing) {
  Done(1);
  EXPECT_EQ(Acknowledge(UINT64_MAX), StatusCode::kInvalidArgument);
  EXPECT_EQ(Acknowledge(uint64_t{1} << 63), StatusCode::kInvalidArgument);
  EXPECT_EQ(GetState(1), State::kDone);
  EXPECT_EQ(GetState(2), State::kNew);
  // The highest possible number leaves one after it.
  EXPECT_EQ(Acknowledge(INT64_MAX), StatusCode::kOk);
  EXPECT_EQ(Find(1), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Find(INT64_MAX), StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetState(uint64_t{1} << 63), State::kNew);
  EXPECT_EQ(Find(UINT64_MAX), StatusCode::kResourceExhausted);
}

TEST_F(ReplyCacheTest, TheResultOfABarrierCounts) {
  auto result = std::make_shared<BarrierResult>();
  result->missing.resize(3);
  ASSERT_EQ(Find(1), StatusCode::kOk);
  cache_.SetDone(SequenceNumber(1),
                 Reply{WaiterId(1), AbortedError("late"), result});
  EXPECT_EQ(cache_.bytes(), 4 + CountBytes(*result));
  EXPECT_EQ(Find(2), StatusCode::kResourceExhausted);
  EXPECT_EQ(Acknowledge(1), StatusCode::kOk);
  EXPECT_EQ(cache_.bytes(), 0);
}

TEST_F(ReplyCacheTest, WhatItHoldsIsOfTheJobsMemory) {
  TotalMemory total(1 << 20);
  MemoryShare share(&total);
  cache_ = ReplyCache(&share);
  limits_.retained_reply_bytes = 10000;
  Done(1, std::string(1000, 'x'));
  Done(3);
  EXPECT_EQ(share.held(), 3 * kReplyMemory + 1000);
  Acknowledge(2);
  EXPECT_EQ(share.held(), kReplyMemory);
  cache_ = ReplyCache(&share);
  EXPECT_EQ(share.held(), 0);
  cache_ = ReplyCache();  // `share` ends first.
}

TEST_F(ReplyCacheTest, IsRefusedForTheJobsMemoryUnlessItHoldsLittle) {
  TotalMemory total(10000);
  MemoryShare share(&total);
  share.Add(8000);
  cache_ = ReplyCache(&share);
  limits_.retained_replies = 100;
  EXPECT_EQ(Find(8), StatusCode::kOk);
  EXPECT_EQ(cache_.Find(SequenceNumber(9), "Add", limits_).status(),
            ResourceExhaustedError(
                "limit total_bytes is 10000, offered 9152 (kept answer of "
                "\"Add\") by a job that holds 9024, and whose share is 312" +
                LimitAdvice("total_bytes")));
  EXPECT_EQ(Acknowledge(8), StatusCode::kOk);
  EXPECT_EQ(Find(9), StatusCode::kOk);
  cache_ = ReplyCache();  // `share` ends first.
}

}  // namespace
}  // namespace muster::coordinator::core
