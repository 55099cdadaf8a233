#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/store.h"
#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `put a=1 r3`, `deleted a r4`.
std::string Describe(const StoreChange& change) {
  std::string text;
  switch (change.kind) {
    case ChangeKind::kPut:
      text = "put " + change.key + "=" + *change.value;
      break;
    case ChangeKind::kDeleted:
      text = "deleted " + change.key;
      break;
    case ChangeKind::kExpired:
      text = "expired " + change.key;
      break;
    case ChangeKind::kOrphaned:
      text = "orphaned " + change.key;
      break;
  }
  return text + " r" + std::to_string(change.revision);
}

class StoreQueueWatchTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(store_.CheckInvariants(), OkStatus()); }

  std::vector<Reply> TakeReplies() {
    std::vector<Reply> replies;
    replies.swap(out_.replies);
    return replies;
  }

  // Keeps the answers to others than the caller of the last verb.
  void Drop(const Outbox& out) {
    ASSERT_EQ(out.replies.front().status, OkStatus());
    for (size_t i = 1; i < out.replies.size(); ++i) {
      out_.replies.push_back(out.replies[i]);
    }
  }

  void Set(const std::string& key, const std::string& value,
           const SetOptions& options = {}, const Call& call = Anonymous(1000)) {
    Outbox out;
    store_.Set(call, key, value, options, t0, out);
    Drop(out);
  }

  void Push(const std::string& key, const std::string& item) {
    Outbox out;
    store_.QueuePush(Anonymous(1000), key, item, out);
    Drop(out);
  }

  bool Present(const std::string& key) {
    Outbox out;
    store_.Check(Anonymous(1001), {key}, out);
    return std::get<FlagReply>(out.replies.front().payload).flag;
  }

  void Watch(uint64_t waiter, WatchSelector selector, int64_t after) {
    store_.Watch(Anonymous(waiter), {std::move(selector), after, 1s}, t0, out_);
  }

  // Returns the changes of the only reply.
  std::vector<std::string> TakeChanges() {
    const std::vector<Reply> replies = TakeReplies();
    if (replies.size() != 1) return {std::to_string(replies.size())};
    std::vector<std::string> changes;
    const auto* reply = std::get_if<WatchReply>(&replies[0].payload);
    if (reply == nullptr) return {std::string(replies[0].status.message())};
    for (const auto& change : reply->changes) {
      changes.push_back(Describe(*change));
    }
    through_ = reply->revision;
    return changes;
  }

  Limits limits_;
  WaiterQuota quota_{8};
  Journal journal_{/*on=*/false};
  StoreEngine store_{&limits_, &quota_, &journal_};
  Outbox out_;
  int64_t through_ = 0;
};

TEST_F(StoreQueueWatchTest, ItemsComeOutInTheOrderInWhichTheyWentIn) {
  Push("q", "1");
  Push("q", "");
  Push("p", "other");
  store_.QueueLen(Anonymous(1), "q", out_);
  store_.QueuePop(Anonymous(2), "q", std::nullopt, t0, out_);
  store_.QueuePop(Anonymous(3), "q", 1s, t0, out_);
  store_.QueuePop(Anonymous(4), "q", std::nullopt, t0, out_);
  store_.QueueLen(Anonymous(5), "q", out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(NumberTo(1u, 2), ValueTo(2u, "1"), ValueTo(3u, ""),
                          FailedWith(4u, StatusCode::kNotFound,
                                     "queue is empty, key: \"q\""),
                          NumberTo(5u, 0)));
}

TEST_F(StoreQueueWatchTest, APushGoesToTheOnePopThatHasWaitedLongest) {
  store_.QueuePop(Anonymous(1), "q", 2s, t0, out_);
  store_.QueuePop(Anonymous(2), "q", 1s, t0, out_);
  store_.QueuePop(Anonymous(3), "q", 3s, t0, out_);
  Push("q", "x");
  EXPECT_THAT(TakeReplies(), ElementsAre(ValueTo(1u, "x")));
  Push("q", "y");
  EXPECT_THAT(TakeReplies(), ElementsAre(ValueTo(2u, "y")));
  EXPECT_EQ(store_.queue_items(), 0);
}

TEST_F(StoreQueueWatchTest, APopThatIsGoneTakesNothing) {
  store_.QueuePop(Anonymous(1), "q", 1s, t0, out_);
  store_.QueuePop(From("m", 1, 2), "q", 1s, t0, out_);
  store_.QueuePop(Anonymous(3), "q", 500ms, t0, out_);
  store_.QueuePop(Anonymous(4), "q", 1s, t0, out_);
  store_.Cancel(WaiterId(1), CancelledError("gone"), out_);
  store_.MemberDeparted(MemberId("m"), FailedPreconditionError("lost"), out_);
  store_.Expire(t0 + 500ms, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(AnsweredTo(1u, StatusCode::kCancelled),
                          AnsweredTo(2u, StatusCode::kFailedPrecondition),
                          FailedWith(3u, StatusCode::kDeadlineExceeded,
                                     "wait timeout after 500ms, keys: q")));
  Push("q", "x");
  EXPECT_THAT(TakeReplies(), ElementsAre(ValueTo(4u, "x")));
}

TEST_F(StoreQueueWatchTest, APopIsAnsweredToWhomItWasHandedOn) {
  store_.QueuePop(Anonymous(1), "q", 1s, t0, out_);
  EXPECT_TRUE(store_.Retarget(WaiterId(1), WaiterId(9)));
  EXPECT_FALSE(store_.Retarget(WaiterId(1), WaiterId(8)));
  Push("q", "x");
  EXPECT_THAT(TakeReplies(), ElementsAre(ValueTo(9u, "x")));
}

TEST_F(StoreQueueWatchTest, AQueueIsThereWhileItHasItems) {
  store_.Wait(Anonymous(1), {"q", "k"}, 1s, t0, out_);
  Push("q", "x");
  EXPECT_TRUE(Present("q"));
  store_.QueuePop(Anonymous(2), "q", std::nullopt, t0, out_);
  EXPECT_FALSE(Present("q"));
  Set("k", "");
  EXPECT_THAT(TakeReplies(), ElementsAre(ValueTo(2u, "x")));
  Push("q", "y");
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(1u, StatusCode::kOk)));
  store_.NumKeys(Anonymous(3), out_);
  EXPECT_THAT(TakeReplies(), ElementsAre(NumberTo(3u, 1)));
}

TEST_F(StoreQueueWatchTest, VerbsForValuesRefuseAQueue) {
  store_.Get(Anonymous(1), "q", 1s, t0, out_);
  Push("q", "x");
  store_.Get(Anonymous(2), "q", 1s, t0, out_);
  store_.TryGet(Anonymous(3), "q", out_);
  store_.Set(Anonymous(4), "q", "", {}, t0, out_);
  store_.Add(Anonymous(5), "q", 1, out_);
  store_.Append(Anonymous(6), "q", "", out_);
  store_.CompareSet(Anonymous(7), "q", "", "v", out_);
  store_.CompareAndSet(Anonymous(8), "q", 0, "v", {}, t0, out_);
  store_.MultiSet(Anonymous(9), std::vector<std::string>{"a", "q"}, {"", ""},
                  out_);
  uint64_t waiter = 1;
  for (const Reply& reply : TakeReplies()) {
    EXPECT_THAT(reply,
                FailedWith(waiter++, StatusCode::kInvalidArgument,
                           HasSubstr(": key \"q\" is a queue of 1 items")));
  }
  EXPECT_EQ(waiter, 10u);
  EXPECT_FALSE(Present("a"));
}

TEST_F(StoreQueueWatchTest, VerbsForQueuesRefuseAValue) {
  Set("k", "v");
  store_.QueuePush(Anonymous(1), "k", "x", out_);
  store_.QueuePop(Anonymous(2), "k", 1s, t0, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(1u, StatusCode::kInvalidArgument,
                                     "queue push: key \"k\" holds a value, no "
                                     "queue"),
                          FailedWith(2u, StatusCode::kInvalidArgument,
                                     "queue pop: key \"k\" holds a value, no "
                                     "queue")));
}

TEST_F(StoreQueueWatchTest, QueuesCountTowardsTheLimits) {
  limits_.queue_items = 2;
  limits_.store_bytes = 10;
  Push("q", "12345");
  store_.QueuePush(Anonymous(1), "p", "1234", out_);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(FailedWith(
          1u, StatusCode::kResourceExhausted,
          HasSubstr("limit store_bytes is 10, offered 11 (key \"p\")"))));
  EXPECT_EQ(store_.bytes(), 6);
  Push("q", "");
  store_.QueuePush(Anonymous(2), "p", "", out_);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(FailedWith(2u, StatusCode::kResourceExhausted,
                             "limit queue_items is 2, offered 3 (key \"p\")" +
                                 LimitAdvice("queue_items"))));
  store_.DeleteKey(Anonymous(3), "q", out_);
  EXPECT_THAT(TakeReplies(), ElementsAre(FlagTo(3u, true)));
  EXPECT_EQ(store_.bytes(), 0);
  EXPECT_EQ(store_.queue_items(), 0);
}

TEST_F(StoreQueueWatchTest, CompareAndSetStoresOnTheExpectedRevisionOnly) {
  store_.CompareAndSet(Anonymous(1), "k", 0, "1", {}, t0, out_);
  store_.CompareAndSet(Anonymous(2), "k", 0, "2", {}, t0, out_);
  store_.CompareAndSet(Anonymous(3), "k", 1, "3", {}, t0, out_);
  store_.CompareAndSet(Anonymous(4), "gone", 7, "4", {}, t0, out_);
  store_.CompareAndSet(Anonymous(5), "k", -1, "5", {}, t0, out_);
  const std::vector<Reply> replies = TakeReplies();
  const auto at = [&](size_t i) {
    return std::get<CompareSetReply>(replies[i].payload);
  };
  EXPECT_TRUE(at(0).stored);
  EXPECT_EQ(at(0).value, nullptr);
  EXPECT_EQ(at(0).revision, 1);
  EXPECT_FALSE(at(1).stored);
  EXPECT_EQ(*at(1).value, "1");
  EXPECT_EQ(at(1).revision, 1);
  EXPECT_TRUE(at(2).stored);
  EXPECT_EQ(at(2).revision, 2);
  EXPECT_FALSE(at(3).stored);
  EXPECT_EQ(at(3).value, nullptr);
  EXPECT_EQ(at(3).revision, 0);
  EXPECT_THAT(replies[4],
              FailedWith(5u, StatusCode::kInvalidArgument,
                         "compare and set: revision is -1, must not be "
                         "negative"));
}

TEST_F(StoreQueueWatchTest, DeletePrefixDeletesValuesAndQueuesOfThePrefix) {
  for (const char* key : {"a", "b", "b/1", "b/2", "c"}) Set(key, "v");
  Push("b/q", "x");
  Push("b/q", "y");
  store_.DeletePrefix(Anonymous(1), "b/", out_);
  store_.DeletePrefix(Anonymous(2), "b/", out_);
  store_.ListKeys(Anonymous(3), "", "", 10, out_);
  const std::vector<Reply> replies = TakeReplies();
  EXPECT_THAT(replies[0], NumberTo(1u, 3));
  EXPECT_THAT(replies[1], NumberTo(2u, 0));
  EXPECT_THAT(std::get<KeysReply>(replies[2].payload).keys,
              ElementsAre("a", "b", "c"));
  EXPECT_EQ(store_.queue_items(), 0);
  store_.DeletePrefix(Anonymous(4), "", out_);
  EXPECT_THAT(TakeReplies(), ElementsAre(NumberTo(4u, 3)));
  EXPECT_EQ(store_.bytes(), 0);
}

TEST_F(StoreQueueWatchTest, AKeyExpiresWhenItsTimeIsOver) {
  Set("k", "v", {.ttl = 100ms});
  EXPECT_EQ(store_.NextDeadline(), t0 + 100ms);
  store_.Expire(t0 + 99ms, out_);
  EXPECT_TRUE(Present("k"));
  store_.Expire(t0 + 100ms, out_);
  EXPECT_FALSE(Present("k"));
  EXPECT_EQ(store_.NextDeadline(), std::nullopt);
}

TEST_F(StoreQueueWatchTest, OnlyAVerbThatReplacesTheKeyEndsItsLifetime) {
  Set("k", "1", {.ttl = 100ms});
  store_.Add(Anonymous(1), "k", 1, out_);
  store_.Append(Anonymous(2), "k", "0", out_);
  store_.CompareSet(Anonymous(3), "k", "20", "7", out_);
  EXPECT_EQ(store_.NextDeadline(), t0 + 100ms);
  for (int verb = 0; verb < 3; ++verb) {
    Set("k", "1", {.ttl = 100ms});
    switch (verb) {
      case 0:
        Set("k", "2");
        break;
      case 1:
        store_.MultiSet(Anonymous(4), std::vector<std::string>{"k"}, {"2"},
                        out_);
        break;
      case 2:
        store_.CompareAndSet(Anonymous(5), "k", store_.revision(), "2", {}, t0,
                             out_);
        break;
    }
    EXPECT_EQ(store_.NextDeadline(), std::nullopt) << verb;
  }
  Set("k", "1", {.ttl = 100ms});
  store_.DeleteKey(Anonymous(6), "k", out_);
  EXPECT_EQ(store_.NextDeadline(), std::nullopt);
}

TEST_F(StoreQueueWatchTest, ATimeToLiveIsPositive) {
  store_.Set(Anonymous(1), "k", "v", {.ttl = 0s}, t0, out_);
  store_.CompareAndSet(Anonymous(2), "k", 0, "v", {.ttl = -1s}, t0, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(1u, StatusCode::kInvalidArgument,
                                     "set: ttl is 0ms, must be positive"),
                          AnsweredTo(2u, StatusCode::kInvalidArgument)));
  EXPECT_FALSE(Present("k"));
}

TEST_F(StoreQueueWatchTest, AnEphemeralKeyGoesWithItsMember) {
  Set("e", "1", {.ephemeral = true}, From("m", 1, 1000));
  Set("f", "1", {.ttl = 1h, .ephemeral = true}, From("m", 1, 1000));
  Set("g", "1", {.ephemeral = true}, From("n", 1, 1000));
  Set("h", "1", {.ephemeral = true}, From("m", 1, 1000));
  Set("h", "2", {}, From("m", 1, 1000));
  store_.MemberDeparted(MemberId("m"), FailedPreconditionError("lost"), out_);
  EXPECT_FALSE(Present("e"));
  EXPECT_FALSE(Present("f"));
  EXPECT_TRUE(Present("g"));
  EXPECT_TRUE(Present("h"));
  EXPECT_EQ(store_.NextDeadline(), std::nullopt);
}

TEST_F(StoreQueueWatchTest, AnEphemeralKeyNeedsAMember) {
  store_.Set(Anonymous(1), "k", "v", {.ephemeral = true}, t0, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  1u, StatusCode::kInvalidArgument,
                  "set: an ephemeral key needs a member, the caller is none")));
}

TEST_F(StoreQueueWatchTest, AWatchIsToldOfEveryKindOfChange) {
  Set("k", "1");
  Set("k", "2");
  Set("l", "1");
  Set("k", "3", {.ttl = 100ms});
  store_.Expire(t0 + 100ms, out_);
  Set("k", "4", {.ephemeral = true}, From("m", 1, 1000));
  store_.MemberDeparted(MemberId("m"), OkStatus(), out_);
  store_.Add(Anonymous(1000), "k", 5, out_);
  store_.DeleteKey(Anonymous(1000), "k", out_);
  TakeReplies();
  Watch(1, {"k", false}, 1);
  EXPECT_THAT(
      TakeChanges(),
      ElementsAre("put k=2 r2", "put k=3 r4", "expired k r5", "put k=4 r6",
                  "orphaned k r7", "put k=5 r8", "deleted k r9"));
  EXPECT_EQ(through_, 9);
}

TEST_F(StoreQueueWatchTest, AWatchWaitsForAChangeOfItsKeys) {
  Watch(1, {"b/", true}, 0);
  Watch(2, {"b/2", false}, 0);
  Watch(3, {"", true}, 0);
  Set("b", "");
  EXPECT_THAT(TakeChanges(), ElementsAre("put b= r1"));
  Set("b/1", "");
  EXPECT_THAT(TakeChanges(), ElementsAre("put b/1= r2"));
  Set("b/2", "");
  EXPECT_THAT(TakeChanges(), ElementsAre("put b/2= r3"));
}

TEST_F(StoreQueueWatchTest, OneStepAnswersAWatchOnce) {
  Watch(1, {"", true}, 0);
  store_.MultiSet(Anonymous(2), std::vector<std::string>{"b", "a"}, {"1", "2"},
                  out_);
  std::vector<Reply> replies = TakeReplies();
  ASSERT_EQ(replies.size(), 2u);
  out_.replies = {replies[1]};
  EXPECT_THAT(TakeChanges(), ElementsAre("put a=2 r1", "put b=1 r1"));
}

TEST_F(StoreQueueWatchTest, AWatchEndsWithoutAChangeAtItsDeadline) {
  Watch(1, {"k", false}, 0);
  Set("other", "");
  EXPECT_THAT(TakeReplies(), IsEmpty());
  store_.Expire(t0 + 1s, out_);
  EXPECT_THAT(TakeChanges(), IsEmpty());
  EXPECT_EQ(through_, 1);
  store_.Watch(Anonymous(2), {{"k", false}, 1, 0s}, t0, out_);
  EXPECT_THAT(TakeChanges(), IsEmpty());
}

TEST_F(StoreQueueWatchTest, AWatchThatBeginsNowLearnsTheRevision) {
  Set("k", "1");
  store_.Watch(Anonymous(1), {{"k", false}, std::nullopt, 1s}, t0, out_);
  EXPECT_THAT(TakeChanges(), IsEmpty());
  EXPECT_EQ(through_, 1);
  EXPECT_EQ(store_.waiters(), 0);
}

TEST_F(StoreQueueWatchTest, AWatchOutlivesTheHistoryThatItHasSeen) {
  limits_.watch_history_changes = 2;
  Watch(1, {"k", false}, 0);
  for (int i = 0; i < 10; ++i) Set("other", "");
  Set("k", "1");
  EXPECT_THAT(TakeChanges(), ElementsAre("put k=1 r11"));
  Watch(2, {"k", false}, 3);
  EXPECT_THAT(TakeChanges(),
              ElementsAre("watch: revision 3 is no longer in the history, the "
                          "oldest to go on from is 9"));
}

TEST_F(StoreQueueWatchTest, AStepThatIsTooLargeForTheHistoryEndsTheWatch) {
  limits_.watch_history_changes = 2;
  for (const char* key : {"a", "b", "c", "d"}) Set(key, "");
  Watch(1, {"a", false}, 4);
  Watch(2, {"z", false}, 4);
  Outbox out;
  store_.DeletePrefix(Anonymous(3), "", out);
  Drop(out);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(1u, StatusCode::kOutOfRange,
                                     HasSubstr("no longer in the history"))));
  EXPECT_EQ(store_.waiters(), 1);
}

TEST_F(StoreQueueWatchTest, QueuesAreNotWatched) {
  Watch(1, {"", true}, 0);
  Push("q", "x");
  store_.DeleteKey(Anonymous(2), "q", out_);
  EXPECT_THAT(TakeReplies(), ElementsAre(FlagTo(2u, true)));
  Set("k", "");
  EXPECT_THAT(TakeChanges(), ElementsAre("put k= r3"));
}

}  // namespace
}  // namespace muster::coordinator::core
