// Tests messages on connections between two ranks: see the fixture.

#include <memory>
#include <string>
#include <vector>

#include "dataplane/cpu/p2p/point_to_point_fixture.h"
#include "dataplane/cpu/transport/p2p_connections.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/failed_call.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

Status LeftDuring(const std::string& label) {
  return Labelled({label, /*is_point_to_point=*/true}, "g",
                  UnavailableError("rank 1 left the group"));
}

TEST_F(PointToPointTest, LargeTensorIsRequestedClearedSentAndTaken) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  const Message request = transport_.TakeSent();
  EXPECT_EQ(request.type, Message::kRequest);
  EXPECT_EQ(request.count, kLarge);
  EXPECT_EQ(transport_.tensors_sent(), 0);
  transport_.Deliver(Offer(Message::kClear, 0, request.id));
  const Message sent = transport_.TakeSent();
  EXPECT_EQ(sent.type, Message::kTensor);
  EXPECT_EQ(sent.id, request.id);
  EXPECT_EQ(transport_.tensors_sent(), 1);
  EXPECT_FALSE(work->IsCompleted());
  transport_.Deliver(Offer(Message::kTaken, 0, request.id));
  EXPECT_TRUE(work->Wait().ok());
}

// The connection still reads the tensor, whatever the peer says.
TEST_F(PointToPointTest, ASendIsNotCompleteBeforeItsTensorHasLeft) {
  transport_.HoldSends();
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  const Message request = transport_.TakeSent();
  transport_.Deliver(Offer(Message::kClear, 0, request.id));
  transport_.Deliver(Offer(Message::kTaken, 0, request.id));
  // Messages are taken in order, so the earlier ones are taken when this
  // completes.
  std::vector<float> small(1);
  const auto other = Receive(small);
  transport_.Deliver(Offer(Message::kEager, 1), {5});
  EXPECT_TRUE(other->Wait().ok());
  EXPECT_FALSE(work->IsCompleted());
  transport_.LetSendsLeave();
  EXPECT_TRUE(work->Wait().ok());
}

TEST_F(PointToPointTest, ASendThatWasNotAskedForIsNotTaken) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  transport_.Deliver(Offer(Message::kTaken, 0, transport_.TakeSent().id));
  EXPECT_EQ(Failure(),
            InternalError("rank 1 took a send that it did not ask for"));
  EXPECT_FALSE(work->IsCompleted());
}

TEST_F(PointToPointTest, ASendThatHasLeftIsCompleteWhenThePeerLeaves) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  transport_.Deliver(Offer(Message::kClear, 0, transport_.TakeSent().id));
  EXPECT_EQ(transport_.TakeSent().type, Message::kTensor);
  transport_.Leave();
  EXPECT_TRUE(work->Wait().ok());
}

TEST_F(PointToPointTest, AClearedSendThatHasNotLeftFailsWhenThePeerLeaves) {
  transport_.HoldSends();
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  transport_.Deliver(Offer(Message::kClear, 0, transport_.TakeSent().id));
  EXPECT_EQ(transport_.TakeSent().type, Message::kTensor);
  transport_.Leave();
  EXPECT_EQ(Failure(), LeftDuring("send #1"));
}

TEST_F(PointToPointTest, APeerThatIgnoresItsCreditEndsTheGroup) {
  for (int i = 0; i <= 64; ++i) {
    transport_.Deliver(Offer(Message::kEager, 1), {5});
  }
  EXPECT_EQ(Failure(), InternalError("rank 1 sent more than 64 small tensors "
                                     "that nobody received"));
}

TEST_F(PointToPointTest, WhatAMessageThrowsIsTheGroupsFailure) {
  std::vector<float> values(kLarge);
  (void)Receive(values);
  transport_.LackThreads();
  transport_.Deliver(Offer(Message::kRequest, kLarge, 1));
  const Status failure = Failure();
  EXPECT_EQ(failure.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(failure.message().find("handling a message of rank 1 could not "),
            0u)
      << failure;
}

TEST_F(PointToPointTest, ASendThatIsClearedTwiceEndsTheGroup) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  const Message request = transport_.TakeSent();
  transport_.Deliver(Offer(Message::kClear, 0, request.id));
  transport_.Deliver(Offer(Message::kClear, 0, request.id));
  EXPECT_EQ(Failure(), InternalError("rank 1 cleared a send twice"));
  EXPECT_EQ(transport_.tensors_sent(), 1);
}

TEST_F(PointToPointTest, AnEmptyTensorWithoutMemoryArrives) {
  transport_.Deliver(Offer(Message::kRequest, 0, 7));
  std::vector<float> none;
  const auto work = Receive(none);
  EXPECT_EQ(transport_.TakeSent().type, Message::kClear);
  transport_.Deliver(Offer(Message::kTensor, 0, 7));
  EXPECT_TRUE(work->Wait().ok());
}

TEST_F(PointToPointTest, RequestIsClearedOnceAReceiveWantsIt) {
  std::vector<float> values(kLarge);
  std::vector<float> small(1);
  const auto first = Receive(small, /*tag=*/9);
  transport_.Deliver(Offer(Message::kRequest, kLarge, 7));
  const auto work = Receive(values);
  const Message clear = transport_.TakeSent();
  EXPECT_EQ(clear.type, Message::kClear);
  EXPECT_EQ(clear.id, 7u);
  EXPECT_FALSE(work->IsCompleted());
  transport_.Deliver(Offer(Message::kTensor, 0, 7),
                     std::vector<float>(kLarge, 5));
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(values.back(), 5);
  EXPECT_EQ(work->source_rank(), 1);
  EXPECT_EQ(transport_.TakeSent().type, Message::kTaken);
  EXPECT_FALSE(first->IsCompleted());
}

TEST_F(PointToPointTest, MessageWithLessThanItSaysIsRefused) {
  std::vector<float> values(kLarge - 1);
  const auto work = Receive(values);
  transport_.Deliver(Offer(Message::kEager, kLarge - 1, 1), {1, 2, 3});
  const Status failure = Failure();
  EXPECT_EQ(failure.code(), StatusCode::kInternal) << failure;
  EXPECT_FALSE(work->IsCompleted());
}

TEST_F(PointToPointTest, WithoutAThreadTheGroupFails) {
  transport_.LackThreads();
  std::vector<float> values(1);
  const auto sent = Send(values);
  const Status failure = Failure();
  EXPECT_EQ(failure.code(), StatusCode::kResourceExhausted) << failure;
  // The tensor may be in use until the group has ended.
  EXPECT_FALSE(sent->IsCompleted());
  End(failure);
  EXPECT_EQ(sent->Wait(), failure);
}

// This rank reads the test's memory as the peer's.
class NearPointToPointTest : public PointToPointTest {
 protected:
  static constexpr uint64_t kValue = 0x1234567;

  NearPointToPointTest() { transport_.MakeNear(mark_, kValue); }

  static Message MakeRequest(const std::vector<float>& values, uint64_t id) {
    Message request = Offer(Message::kRequest, values.size(), id);
    request.address = reinterpret_cast<uint64_t>(values.data());
    return request;
  }
  void ExpectSent(Message::Type type, uint64_t id) {
    const Message message = transport_.TakeSent();
    EXPECT_EQ(message.type, type);
    EXPECT_EQ(message.id, id);
  }

  Mark mark_{kValue};
};

TEST_F(NearPointToPointTest, LargeTensorIsReadWhereItIs) {
  // Larger than one read.
  std::vector<float> theirs(3'000'000);
  for (size_t i = 0; i < theirs.size(); ++i) theirs[i] = static_cast<float>(i);
  std::vector<float> first(theirs.size());
  const auto waiting = Receive(first);
  transport_.Deliver(MakeRequest(theirs, 7));
  EXPECT_TRUE(waiting->Wait().ok());
  EXPECT_EQ(waiting->source_rank(), 1);
  EXPECT_TRUE(first == theirs);
  ExpectSent(Message::kReads, 7);
  ExpectSent(Message::kTaken, 7);
  // The same for a request that is claimed later.
  std::vector<float> small(1);
  const auto other = Receive(small, /*tag=*/9);
  transport_.Deliver(MakeRequest(theirs, 8));
  Message last = Offer(Message::kEager, 1);
  last.tag = 9;
  transport_.Deliver(last, {5});
  EXPECT_TRUE(other->Wait().ok());
  std::vector<float> second(theirs.size());
  EXPECT_TRUE(Receive(second)->Wait().ok());
  EXPECT_TRUE(second == theirs);
  ExpectSent(Message::kReads, 8);
  ExpectSent(Message::kTaken, 8);
}

TEST_F(NearPointToPointTest, WhatCannotBeReadIsSent) {
  std::vector<float> theirs(kLarge, 3);
  std::vector<float> mine(kLarge);
  // The peer has taken its memory back.
  mark_.Clear();
  const auto work = Receive(mine);
  transport_.Deliver(MakeRequest(theirs, 7));
  ExpectSent(Message::kReads, 7);
  ExpectSent(Message::kClear, 7);
  EXPECT_FALSE(work->IsCompleted());
  transport_.Deliver(Offer(Message::kTensor, 0, 7), theirs);
  EXPECT_TRUE(work->Wait().ok());
  ExpectSent(Message::kTaken, 7);
}

TEST_F(NearPointToPointTest, SenderSaysWhereItsTensorIs) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  const Message request = transport_.TakeSent();
  EXPECT_EQ(request.type, Message::kRequest);
  EXPECT_EQ(request.address, reinterpret_cast<uint64_t>(values.data()));
  transport_.Deliver(Offer(Message::kReads, 0, request.id));
  transport_.Deliver(Offer(Message::kTaken, 0, request.id));
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(transport_.tensors_sent(), 0);
}

TEST_F(NearPointToPointTest, ASendThatIsBeingReadIsCompleteWhenThePeerLeaves) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  const Message request = transport_.TakeSent();
  std::vector<float> small(1);
  const auto other = Receive(small);
  transport_.Deliver(Offer(Message::kReads, 0, request.id));
  // Messages are taken in order, so the earlier one is taken, too.
  transport_.Deliver(Offer(Message::kEager, 1), {5});
  EXPECT_TRUE(other->Wait().ok());
  transport_.Leave();
  EXPECT_TRUE(work->Wait().ok());
}

TEST_F(NearPointToPointTest, ASendThatNobodyReadsFailsWhenThePeerLeaves) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  transport_.Leave();
  EXPECT_EQ(Failure(), LeftDuring("send #1"));
}

TEST_F(PointToPointTest, MoreSmallOnesThanTheReceiverClaimsBecomeRequests) {
  std::vector<float> values(3);
  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(Send(values)->Wait().ok());
    EXPECT_EQ(transport_.TakeSent().type, Message::kEager);
  }
  const auto waiting = Send(values);
  EXPECT_EQ(transport_.TakeSent().type, Message::kRequest);
  EXPECT_FALSE(waiting->IsCompleted());
  transport_.Deliver(Offer(Message::kCredit, 1));
  // Messages are taken in order, so the earlier one is taken when this
  // completes.
  std::vector<float> other(1);
  const auto received = Receive(other);
  transport_.Deliver(Offer(Message::kEager, 1), {5});
  EXPECT_TRUE(received->Wait().ok());
  EXPECT_EQ(other[0], 5);
  EXPECT_TRUE(Send(values)->Wait().ok());
  EXPECT_EQ(transport_.TakeSent().type, Message::kEager);
  (void)Send(values);
  EXPECT_EQ(transport_.TakeSent().type, Message::kRequest);
}

TEST_F(PointToPointTest, SenderIsToldOfEvery32SmallOnesThatWereClaimed) {
  std::vector<float> values(1);
  for (int i = 0; i < 32; ++i) {
    const auto work = Receive(values);
    transport_.Deliver(Offer(Message::kEager, 1), {static_cast<float>(i)});
    EXPECT_TRUE(work->Wait().ok());
    EXPECT_EQ(values[0], static_cast<float>(i));
  }
  const Message credit = transport_.TakeSent();
  EXPECT_EQ(credit.type, Message::kCredit);
  EXPECT_EQ(credit.count, 32u);
}

TEST_F(PointToPointTest, SmallSendThatHasNotLeftFailsWhenThePeerLeaves) {
  transport_.HoldSends();
  std::vector<float> values(3);
  const auto work = Send(values);
  EXPECT_FALSE(work->IsCompleted());
  transport_.Leave();
  EXPECT_EQ(Failure(), LeftDuring("send #1"));
  {
    MutexLock lock(mutex_);
    failure_ = OkStatus();
  }
  // The next send needs the peer.
  (void)Send(values);
  EXPECT_EQ(Failure(), LeftDuring("send #2"));
}

TEST_F(PointToPointTest, ReceiveAndLargeSendFailWhenThePeerLeaves) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  transport_.Leave();
  EXPECT_EQ(Failure(), LeftDuring("send #1"));
  End(AbortedError("the group failed"));
  EXPECT_EQ(work->Wait(), AbortedError("the group failed"));
}

TEST_F(PointToPointTest, RubbishFromThePeerEndsTheGroup) {
  struct Case {
    Message message;
    const char* text;
  };
  Message type = Offer(Message::kEager, 1);
  type.data_type = 99;
  const Case cases[] = {
      {Offer(static_cast<Message::Type>(55), 0),
       "rank 1 sent a message of unknown type 55"},
      {type, "rank 1 sent a message of 1 elements of type 99"},
      {Offer(Message::kEager, kLarge),
       "rank 1 sent a message of 8193 elements of type 7"},
      {Offer(Message::kClear, 0, 3), "rank 1 cleared a send that is not there"},
      {Offer(Message::kTensor, 0, 3),
       "rank 1 sent a tensor that nobody awaits"},
  };
  std::vector<float> values(1);
  (void)Receive(values, /*tag=*/9);
  for (const Case& c : cases) {
    transport_.Deliver(c.message);
    EXPECT_EQ(Failure(), InternalError(c.text));
    MutexLock lock(mutex_);
    failure_ = OkStatus();
  }
}

}  // namespace
}  // namespace muster::dataplane::cpu
