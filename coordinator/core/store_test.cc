#include "coordinator/core/store.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class StoreEngineTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(store_.CheckInvariants(), OkStatus()); }

  // Returns the answers since the last call of this function.
  std::vector<Reply> TakeReplies() {
    std::vector<Reply> replies;
    replies.swap(out_.replies);
    return replies;
  }

  void Set(const std::string& key, std::string value) {
    Outbox out;
    store_.Set(Anonymous(1000), key, std::move(value), {}, t0, out);
    ASSERT_EQ(out.replies.front().status, OkStatus());
    // The answers to calls that the key woke.
    for (size_t i = 1; i < out.replies.size(); ++i) {
      out_.replies.push_back(out.replies[i]);
    }
  }

  std::string Held(const std::string& key) {
    Outbox out;
    store_.TryGet(Anonymous(1001), key, out);
    const Value value = std::get<ValueReply>(out.replies.front().payload).value;
    return value == nullptr ? "(absent)" : *value;
  }

  Limits limits_;
  WaiterQuota quota_{4};
  Journal journal_{/*on=*/false};
  StoreEngine store_{&limits_, &quota_, &journal_};
  Outbox out_;
};

TEST_F(StoreEngineTest, GetReturnsWhatWasSetWithItsRevision) {
  store_.Set(Anonymous(1), "a", "x", {}, t0, out_);
  store_.Set(Anonymous(2), "b", std::string("\0y", 2), {}, t0, out_);
  store_.Get(Anonymous(3), "b", 1s, t0, out_);
  EXPECT_THAT(out_.replies, SizeIs(3));
  EXPECT_THAT(out_.replies[2], ValueTo(3u, std::string("\0y", 2)));
  EXPECT_EQ(std::get<ValueReply>(out_.replies[2].payload).revision, 2);
}

TEST_F(StoreEngineTest, TryGetOfAnAbsentKeyIsNullAndDoesNotWait) {
  store_.TryGet(Anonymous(1), "a", out_);
  ASSERT_THAT(out_.replies, ElementsAre(AnsweredTo(1u, StatusCode::kOk)));
  EXPECT_EQ(std::get<ValueReply>(out_.replies[0].payload).value, nullptr);
}

TEST_F(StoreEngineTest, GetWaitsUntilTheKeyIsSet) {
  store_.Get(Anonymous(1), "a", 1s, t0, out_);
  EXPECT_THAT(TakeReplies(), IsEmpty());
  EXPECT_EQ(store_.NextDeadline(), t0 + 1s);
  Set("a", "x");
  EXPECT_THAT(TakeReplies(), ElementsAre(ValueTo(1u, "x")));
  EXPECT_EQ(store_.NextDeadline(), std::nullopt);
}

TEST_F(StoreEngineTest, EveryMutationThatCreatesAKeyWakesItsWaiters) {
  for (int verb = 0; verb < 5; ++verb) {
    const std::string key(1, static_cast<char>('a' + verb));
    store_.Wait(Anonymous(1), {key}, 1s, t0, out_);
    switch (verb) {
      case 0:
        store_.Set(Anonymous(2), key, "v", {}, t0, out_);
        break;
      case 1:
        store_.Add(Anonymous(2), key, 0, out_);
        break;
      case 2:
        store_.Append(Anonymous(2), key, "v", out_);
        break;
      case 3:
        store_.CompareSet(Anonymous(2), key, "", "v", out_);
        break;
      case 4:
        store_.MultiSet(Anonymous(2), std::vector<std::string>{key}, {"v"},
                        out_);
        break;
    }
    EXPECT_THAT(TakeReplies(),
                UnorderedElementsAre(AnsweredTo(1u, StatusCode::kOk),
                                     AnsweredTo(2u, StatusCode::kOk)))
        << "verb " << verb;
  }
}

TEST_F(StoreEngineTest, WaitCountsADuplicateKeyOnce) {
  store_.Wait(Anonymous(1), {"a", "b", "a"}, 1s, t0, out_);
  Set("a", "");
  EXPECT_THAT(TakeReplies(), IsEmpty());
  Set("b", "");
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(1u, StatusCode::kOk)));
}

TEST_F(StoreEngineTest, AKeyThatIsDeletedAgainIsAwaitedAgain) {
  store_.MultiGet(Anonymous(1), {"a", "b"}, 1s, t0, out_);
  Set("a", "1");
  store_.DeleteKey(Anonymous(2), "a", out_);
  EXPECT_THAT(TakeReplies(), ElementsAre(FlagTo(2u, true)));
  Set("b", "2");
  EXPECT_THAT(TakeReplies(), IsEmpty());
  Set("a", "3");
  const std::vector<Reply> replies = TakeReplies();
  ASSERT_THAT(replies, ElementsAre(AnsweredTo(1u, StatusCode::kOk)));
  const auto& values = std::get<ValuesReply>(replies[0].payload).values;
  EXPECT_EQ(*values[0].value, "3");
  EXPECT_EQ(*values[1].value, "2");
}

TEST_F(StoreEngineTest, WaitForNothingIsOverAtOnce) {
  store_.Wait(Anonymous(1), {}, 1s, t0, out_);
  EXPECT_THAT(out_.replies, ElementsAre(AnsweredTo(1u, StatusCode::kOk)));
}

TEST_F(StoreEngineTest, TimeoutNamesOnlyTheMissingKeys) {
  Set("b", "");
  store_.Wait(Anonymous(1), {"c", "b", "a"}, 100ms, t0, out_);
  store_.Expire(t0 + 99ms, out_);
  EXPECT_THAT(out_.replies, IsEmpty());
  store_.Expire(t0 + 100ms, out_);
  EXPECT_THAT(out_.replies,
              ElementsAre(FailedWith(1u, StatusCode::kDeadlineExceeded,
                                     "wait timeout after 100ms, keys: a, c")));
}

TEST_F(StoreEngineTest, TimeoutNamesAtMostEightKeys) {
  std::vector<std::string> keys;
  for (int i = 100; i < 228; ++i) keys.push_back(std::to_string(i));
  store_.Wait(Anonymous(1), keys, 1s, t0, out_);
  store_.Expire(t0 + 1s, out_);
  EXPECT_THAT(out_.replies, ElementsAre(FailedWith(
                                1u, StatusCode::kDeadlineExceeded,
                                "wait timeout after 1s, keys: 100, 101, 102, "
                                "103, 104, 105, 106, 107 and 120 more")));
}

TEST_F(StoreEngineTest, TimeoutOfZeroFailsAtOnce) {
  store_.Get(Anonymous(1), "a", 0s, t0, out_);
  EXPECT_THAT(out_.replies,
              ElementsAre(FailedWith(1u, StatusCode::kDeadlineExceeded,
                                     "wait timeout after 0ms, keys: a")));
}

TEST_F(StoreEngineTest, AddStoresDecimalText) {
  store_.Add(Anonymous(1), "n", 5, out_);
  store_.Add(Anonymous(2), "n", -7, out_);
  EXPECT_THAT(out_.replies, ElementsAre(NumberTo(1u, 5), NumberTo(2u, -2)));
  EXPECT_EQ(Held("n"), "-2");
}

TEST_F(StoreEngineTest, AddRefusesWhatIsNotAWholeNumber) {
  for (const char* held :
       {"12abc", "", " 1", "+1", "1 ", "99999999999999999999", "0x10", "1.0"}) {
    Set("n", held);
    store_.Add(Anonymous(1), "n", 1, out_);
    EXPECT_THAT(TakeReplies(),
                ElementsAre(FailedWith(
                    1u, StatusCode::kInvalidArgument,
                    HasSubstr(std::string("add: key \"n\" holds \"") + held +
                              "\", which is not a decimal int64"))));
    EXPECT_EQ(Held("n"), held);
  }
}

TEST_F(StoreEngineTest, AddRefusesToOverflow) {
  Set("n", "9223372036854775807");
  store_.Add(Anonymous(1), "n", 1, out_);
  EXPECT_THAT(TakeReplies(),
              ElementsAre(FailedWith(
                  1u, StatusCode::kOutOfRange,
                  "add: key \"n\" holds 9223372036854775807, and adding 1 "
                  "overflows an int64")));
  EXPECT_EQ(Held("n"), "9223372036854775807");
  store_.Add(Anonymous(2), "n", INT64_MIN, out_);
  EXPECT_THAT(TakeReplies(), ElementsAre(NumberTo(2u, -1)));
}

TEST_F(StoreEngineTest, AppendCreatesAndExtends) {
  store_.Append(Anonymous(1), "a", "x", out_);
  store_.Append(Anonymous(2), "a", std::string("\0y", 2), out_);
  EXPECT_EQ(Held("a"), std::string("x\0y", 3));
}

TEST_F(StoreEngineTest, CompareSetFollowsC10d) {
  const auto compare_set = [&](const std::string& expected,
                               const std::string& desired) {
    Outbox out;
    store_.CompareSet(Anonymous(1), "a", expected, desired, out);
    const auto reply = std::get<CompareSetReply>(out.replies.front().payload);
    return *reply.value + (reply.stored ? " stored" : " kept");
  };
  EXPECT_EQ(compare_set("x", "y"), "x kept");
  EXPECT_EQ(Held("a"), "(absent)");
  EXPECT_EQ(compare_set("", "1"), "1 stored");
  EXPECT_EQ(compare_set("", "2"), "1 kept");
  EXPECT_EQ(compare_set("1", "2"), "2 stored");
  EXPECT_EQ(compare_set("1", "3"), "2 kept");
  EXPECT_EQ(Held("a"), "2");
}

TEST_F(StoreEngineTest, DeleteTellsWhetherThereWasAKey) {
  Set("a", "x");
  store_.DeleteKey(Anonymous(1), "a", out_);
  store_.DeleteKey(Anonymous(2), "a", out_);
  EXPECT_THAT(out_.replies, ElementsAre(FlagTo(1u, true), FlagTo(2u, false)));
  EXPECT_EQ(store_.bytes(), 0);
}

TEST_F(StoreEngineTest, CheckIsTrueWhenAllKeysAreThere) {
  Set("a", "");
  store_.Check(Anonymous(1), std::vector<std::string>{"a", "b"}, out_);
  store_.Check(Anonymous(2), std::vector<std::string>{"a"}, out_);
  store_.Check(Anonymous(3), {}, out_);
  EXPECT_THAT(out_.replies, ElementsAre(FlagTo(1u, false), FlagTo(2u, true),
                                        FlagTo(3u, true)));
}

TEST_F(StoreEngineTest, MultiSetIsOneRevisionAndTheLastValueOfAKeyStays) {
  store_.MultiSet(Anonymous(1), std::vector<std::string>{"a", "b", "a"},
                  {"1", "2", "3"}, out_);
  ASSERT_THAT(out_.replies, ElementsAre(AnsweredTo(1u, StatusCode::kOk)));
  EXPECT_EQ(std::get<RevisionReply>(out_.replies[0].payload).revision, 1);
  EXPECT_EQ(Held("a"), "3");
  EXPECT_EQ(store_.keys(), 2);
}

TEST_F(StoreEngineTest, AWaiterSeesAWholeMultiSet) {
  Set("b", "old");
  store_.MultiGet(Anonymous(1), {"a", "b"}, 1s, t0, out_);
  store_.MultiSet(Anonymous(2), std::vector<std::string>{"a", "b"},
                  {"new", "new"}, out_);
  ASSERT_THAT(out_.replies, SizeIs(2));
  const auto& values = std::get<ValuesReply>(out_.replies[1].payload).values;
  EXPECT_EQ(*values[1].value, "new");
}

TEST_F(StoreEngineTest, MultiSetNeedsAsManyValuesAsKeys) {
  store_.MultiSet(Anonymous(1), std::vector<std::string>{"a"}, {}, out_);
  EXPECT_THAT(out_.replies,
              ElementsAre(FailedWith(1u, StatusCode::kInvalidArgument,
                                     "multiSet keys and values vectors must be "
                                     "of same size, not 1 and 0")));
}

TEST_F(StoreEngineTest, ListKeysPagesThroughAPrefix) {
  for (const char* key : {"a", "b/1", "b/2", "b/3", "c", ""}) Set(key, "");
  const auto list = [&](const std::string& prefix, const std::string& after) {
    Outbox out;
    store_.ListKeys(Anonymous(1), prefix, after, 2, out);
    KeysReply reply = std::get<KeysReply>(out.replies.front().payload);
    if (reply.more) reply.keys.push_back("...");
    return reply.keys;
  };
  EXPECT_THAT(list("b/", ""), ElementsAre("b/1", "b/2", "..."));
  EXPECT_THAT(list("b/", "b/2"), ElementsAre("b/3"));
  EXPECT_THAT(list("", ""), ElementsAre("", "a", "..."));
  EXPECT_THAT(list("x", ""), IsEmpty());
}

TEST_F(StoreEngineTest, ListKeysRefusesANegativeNumber) {
  store_.ListKeys(Anonymous(1), "", "", -1, out_);
  EXPECT_THAT(
      TakeReplies(),
      ElementsAre(FailedWith(1u, StatusCode::kInvalidArgument,
                             "list keys: limit is -1, must not be negative")));
}

TEST_F(StoreEngineTest, WaitersAreWokenInTheOrderInWhichTheyCame) {
  store_.Get(Anonymous(9), "a", 1s, t0, out_);
  store_.Get(Anonymous(3), "a", 1s, t0, out_);
  store_.Get(Anonymous(7), "a", 1s, t0, out_);
  Set("a", "x");
  EXPECT_THAT(TakeReplies(), ElementsAre(ValueTo(9u, "x"), ValueTo(3u, "x"),
                                         ValueTo(7u, "x")));
}

TEST_F(StoreEngineTest, ACancelledWaiterIsAnsweredOnce) {
  store_.Get(Anonymous(1), "a", 1s, t0, out_);
  const Status cancelled = CancelledError("gone");
  EXPECT_TRUE(store_.Cancel(WaiterId(1), cancelled, out_));
  EXPECT_FALSE(store_.Cancel(WaiterId(1), cancelled, out_));
  Set("a", "x");
  store_.Expire(t0 + 2s, out_);
  EXPECT_THAT(out_.replies,
              ElementsAre(FailedWith(1u, StatusCode::kCancelled, "gone")));
}

TEST_F(StoreEngineTest, FailingAMemberAnswersItsWaitersOnly) {
  store_.Get(From("m", 1, 1), "a", 1s, t0, out_);
  store_.Get(From("m", 1, 2), "b", 1s, t0, out_);
  store_.Get(From("n", 1, 3), "a", 1s, t0, out_);
  store_.MemberDeparted(MemberId("m"), FailedPreconditionError("lost"), out_);
  EXPECT_THAT(out_.replies,
              ElementsAre(AnsweredTo(1u, StatusCode::kFailedPrecondition),
                          AnsweredTo(2u, StatusCode::kFailedPrecondition)));
  EXPECT_EQ(store_.waiters(), 1);
}

TEST_F(StoreEngineTest, WaitsOfMembersAreShownWithAKeyThatIsNotThere) {
  int64_t more = 0;
  Set("a", "x");
  store_.MultiGet(From("m", 1, 1), {"a", "b", "c"}, 1min, t0, out_);
  store_.QueuePop(From("n", 1, 2), "q", 1min, t0 + 1s, out_);
  store_.Wait(From("o", 1, 3), {"a", "c"}, 1min, t0 + 2s, out_);
  // The call of an operator, who is no member.
  store_.Get(Anonymous(4), "c", 1min, t0, out_);
  std::vector<KeyWaitSnapshot> waits = store_.KeyWaits(t0 + 5s, more);
  ASSERT_THAT(waits, SizeIs(3));
  EXPECT_EQ(waits[0].member, MemberId("m"));
  EXPECT_EQ(waits[0].key, "b");
  EXPECT_EQ(waits[0].missing, 2);
  EXPECT_EQ(waits[0].waiting_for, 5s);
  EXPECT_FALSE(waits[0].item);
  EXPECT_EQ(waits[1].key, "q");
  EXPECT_TRUE(waits[1].item);
  EXPECT_EQ(waits[2].key, "c");
  EXPECT_EQ(waits[2].missing, 1);
  EXPECT_EQ(waits[2].waiting_for, 3s);
  EXPECT_EQ(more, 0);
  Set("b", "x");
  waits = store_.KeyWaits(t0 + 5s, more);
  ASSERT_THAT(waits, SizeIs(3));
  EXPECT_EQ(waits[0].key, "c");
}

// A job with many waits neither holds its lock for long nor fills a message.
TEST_F(StoreEngineTest, OfManyWaitsTheFirstAreShownAndTheOthersCounted) {
  WaiterQuota quota(5000);
  StoreEngine store(&limits_, &quota, &journal_);
  std::vector<std::string> keys;
  for (int i = 0; i < 300; ++i) {
    keys.push_back(absl::StrCat("there", i));
    store.Set(Anonymous(1), keys.back(), "", {}, t0, out_);
  }
  for (uint64_t i = 0; i < kKeyWaitsInSnapshotMax + 3; ++i) {
    keys.push_back(absl::StrCat(std::string(4000, 'x'), i));
    store.Wait(From("m", 1, i + 2), keys, 1min, t0, out_);
    keys.pop_back();
  }
  int64_t more = 0;
  const std::vector<KeyWaitSnapshot> waits = store.KeyWaits(t0, more);
  ASSERT_THAT(waits, SizeIs(kKeyWaitsInSnapshotMax));
  EXPECT_EQ(more, 3);
  EXPECT_THAT(waits[0].key, SizeIs(kKeyBytesInSnapshotMax));
  EXPECT_EQ(waits[0].missing, 1);
  // After so many lookups no further keys are looked up.
  EXPECT_EQ(waits.back().key, "");
  EXPECT_EQ(waits.back().missing, 1);
}

// Errors name the limit, its value and the offer; a refused call changes
//   nothing.

class StoreEngineLimitsTest : public StoreEngineTest {
 protected:
  StoreEngineLimitsTest() {
    limits_.key_bytes = 4;
    limits_.value_bytes = 8;
    limits_.keys = 3;
    limits_.store_bytes = 20;
    limits_.keys_per_call = 4;
    limits_.parked_time = 1h;
  }

  void ExpectRefused(absl::string_view text) {
    EXPECT_THAT(TakeReplies(),
                ElementsAre(FailedWith(1u, StatusCode::kResourceExhausted,
                                       HasSubstr(std::string(text)))));
    EXPECT_EQ(store_.revision(), revision_);
  }

  int64_t revision_ = 0;
};

TEST_F(StoreEngineLimitsTest, KeyBytes) {
  store_.Set(Anonymous(1), "12345", "", {}, t0, out_);
  ExpectRefused("limit key_bytes is 4, offered 5");
  store_.Add(Anonymous(1), "12345", 1, out_);
  ExpectRefused("limit key_bytes is 4, offered 5");
  store_.Get(Anonymous(1), "12345", 1s, t0, out_);
  ExpectRefused("limit key_bytes is 4, offered 5");
  store_.MultiSet(Anonymous(1), std::vector<std::string>{"a", "12345"},
                  {"", ""}, out_);
  ExpectRefused("limit key_bytes is 4, offered 5");
}

TEST_F(StoreEngineLimitsTest, ValueBytes) {
  store_.Set(Anonymous(1), "a", "123456789", {}, t0, out_);
  ExpectRefused("limit value_bytes is 8, offered 9");
  Set("a", "1234");
  revision_ = 1;
  store_.Append(Anonymous(1), "a", "56789", out_);
  ExpectRefused("limit value_bytes is 8, offered 9");
  store_.CompareSet(Anonymous(1), "b", "123456789", "", out_);
  ExpectRefused("limit value_bytes is 8, offered 9");
}

TEST_F(StoreEngineLimitsTest, Keys) {
  for (const char* key : {"a", "b", "c"}) Set(key, "");
  revision_ = 3;
  store_.Set(Anonymous(1), "d", "", {}, t0, out_);
  ExpectRefused("limit keys is 3, offered 4");
  Set("a", "written");
}

TEST_F(StoreEngineLimitsTest, StoreBytes) {
  Set("a", "12345678");
  Set("b", "12345678");
  revision_ = 2;
  store_.Set(Anonymous(1), "c", "12", {}, t0, out_);
  ExpectRefused("limit store_bytes is 20, offered 21");
  store_.MultiSet(Anonymous(1), std::vector<std::string>{"c", "a"},
                  {"12345", "1234"}, out_);
  EXPECT_THAT(TakeReplies(), ElementsAre(AnsweredTo(1u, StatusCode::kOk)));
}

TEST_F(StoreEngineLimitsTest, KeysPerCall) {
  store_.Wait(Anonymous(1), {"1", "2", "3", "4", "5"}, 1s, t0, out_);
  ExpectRefused("limit keys_per_call is 4, offered 5");
}

TEST_F(StoreEngineLimitsTest, ParkedTime) {
  store_.Get(Anonymous(1), "a", 3601s, t0, out_);
  ExpectRefused("limit parked_time is 3600s, offered 3601s");
}

TEST_F(StoreEngineLimitsTest, Waiters) {
  for (uint64_t i = 10; i < 14; ++i) {
    store_.Get(Anonymous(i), "a", 1s, t0, out_);
  }
  store_.Get(Anonymous(1), "a", 1s, t0, out_);
  ExpectRefused("limit waiters is 4, offered 5");
  store_.Expire(t0 + 1s, out_);
  EXPECT_EQ(quota_.parked(), 0);
}

// A waiter counts its keys, 64 bytes for each, and 64 for itself.
TEST_F(StoreEngineLimitsTest, WaiterBytes) {
  WaiterQuota quota(4, 200);
  StoreEngine store(&limits_, &quota, &journal_);
  store.Wait(Anonymous(10), {"a", "bb"}, 1s, t0, out_);
  EXPECT_EQ(quota.bytes(), 3 * 64 + 3);
  store.Get(Anonymous(1), "a", 1s, t0, out_);
  ExpectRefused("limit waiter_bytes is 200, offered 324 (key \"a\")");
  // A call that does not wait counts nothing.
  store.TryGet(Anonymous(2), "a", out_);
  store.Expire(t0 + 1s, out_);
  EXPECT_THAT(TakeReplies(), SizeIs(2));
  EXPECT_EQ(quota.bytes(), 0);
  store.Get(Anonymous(3), "a", 1s, t0, out_);
  store.Set(Anonymous(4), "a", "", {}, t0, out_);
  EXPECT_EQ(quota.bytes(), 0);
}

}  // namespace
}  // namespace muster::coordinator::core
