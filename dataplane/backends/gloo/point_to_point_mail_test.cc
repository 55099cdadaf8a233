// What goes by mail, of two ranks: see the fixture.

#include <cstddef>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dataplane/backends/gloo/channel.h"
#include "dataplane/backends/gloo/mail.h"
#include "dataplane/backends/gloo/point_to_point_fixture.h"
#include "dataplane/mutex.h"
#include "gtest/gtest.h"

namespace muster::dataplane::gloo_internal {
namespace {

// Both have a box from the other; this rank opens its own when it first sends
// or receives.
class MailPointToPointTest : public PointToPointTest {
 protected:
  MailPointToPointTest() {
    point_to_point_->SetMail(MailOf(0));
    peer_mail_ = MailOf(1);
    peer_mail_->Open(0);
  }

  void Leave(const Message& message, std::vector<float> payload = {}) {
    ASSERT_TRUE(peer_mail_->Put(0, message, payload.data(),
                                payload.size() * sizeof(float)));
  }
  // Not as Wait does it, which looks for mail.
  static void AwaitCompletion(Work& work) {
    std::promise<void> complete;
    work.OnCompletion([&](const absl::Status&) { complete.set_value(); });
    complete.get_future().wait();
  }
  // What this rank left.
  std::vector<Message> TakeLeft() {
    std::vector<Message> messages;
    peer_mail_->Take(0, [&](const Message& message, const std::byte*) {
      messages.push_back(message);
    });
    return messages;
  }

  std::shared_ptr<Mail> MailOf(int place) {
    return std::make_shared<Mail>(std::shared_ptr<void>(memory_, memory_.get()),
                                  std::vector<int>{0, 1}, place);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  std::shared_ptr<Line[]> memory_ =
      std::make_shared<Line[]>(Mail::BytesFor(2) / sizeof(Line));

 protected:
  std::shared_ptr<Mail> peer_mail_;
};

TEST_F(MailPointToPointTest, ASmallSendIsCompleteAtOnce) {
  std::vector<float> values = {1, 2};
  mesh_.HoldSends();
  const auto work = Send(values, /*tag=*/3);
  EXPECT_TRUE(work->IsCompleted());
  const std::vector<Message> left = TakeLeft();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].type, Message::kEager);
  EXPECT_EQ(left[0].tag, 3);
  EXPECT_EQ(left[0].count, 2u);
  EXPECT_EQ(left[0].id, 1u);
}

TEST_F(MailPointToPointTest, WhatTheBoxDoesNotTakeGoesOnTheConnection) {
  std::vector<float> values(kLarge - 1);
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 9; ++i) works.push_back(Send(values));
  EXPECT_EQ(TakeLeft().size(), 7u);
  EXPECT_EQ(mesh_.TakeSent().id, 8u);
  EXPECT_EQ(mesh_.TakeSent().id, 9u);
  works.push_back(Send(values));
  ASSERT_EQ(TakeLeft().size(), 1u);
  for (const auto& work : works) EXPECT_TRUE(work->Wait().ok());
}

TEST_F(MailPointToPointTest, WhoWaitsTakesWhatComes) {
  std::vector<float> values(2);
  const auto work = Receive(values);
  Leave(Offer(Message::kEager, 2, 1), {5, 6});
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(work->source_rank(), 1);
  EXPECT_EQ(values, (std::vector<float>{5, 6}));
}

// Nobody waits, and it completes nevertheless.
TEST_F(MailPointToPointTest, WhatComesWhileNobodyLooksIsTaken) {
  for (uint64_t id = 1; id <= 100; ++id) {
    std::vector<float> values(1);
    const auto work = Receive(values);
    Leave(Offer(Message::kEager, 1, id), {7});
    AwaitCompletion(*work);
    EXPECT_EQ(values[0], 7);
    TakeLeft();
  }
}

// What is there when a receive starts is its own.
TEST_F(MailPointToPointTest, WhatHasComeBeforeIsTakenAtOnce) {
  std::vector<float> values(1);
  std::vector<float> more(1);
  const auto first = Receive(values);
  Leave(Offer(Message::kEager, 1, 1), {7});
  EXPECT_TRUE(first->Wait().ok());
  Leave(Offer(Message::kEager, 1, 2), {8});
  EXPECT_TRUE(Receive(more)->IsCompleted());
  EXPECT_EQ(more[0], 8);
}

// A start completes nothing else itself: its caller may have locks that the
// other's callbacks want.
TEST_F(MailPointToPointTest, AStartLeavesTheEndOfOthersToAnotherThread) {
  for (uint64_t id = 1; id <= 100; ++id) {
    std::vector<float> values(1);
    std::vector<float> sent(1);
    Mutex mutex;
    const auto first = Receive(values);
    first->OnCompletion([&](const absl::Status&) { MutexLock lock(mutex); });
    {
      MutexLock lock(mutex);
      Leave(Offer(Message::kEager, 1, id), {7});
      EXPECT_TRUE(Send(sent)->IsCompleted());
      TakeLeft();
    }
    EXPECT_TRUE(first->Wait().ok());
    if (id % 32 == 0) Leave(Credit(32));
  }
}

// What is offered is matched in the order of its ids, whichever way it came.
TEST_F(MailPointToPointTest, WhatOvertakesWaitsForWhatItOvertook) {
  std::vector<float> one(1);
  std::vector<float> two(1);
  std::vector<float> three(1);
  std::vector<float> large(kLarge);
  const auto first = Receive(one);
  const auto second = Receive(two);
  const auto third = Receive(large);
  const auto fourth = Receive(three);
  Leave(Offer(Message::kEager, 1, 2), {2});
  Leave(Offer(Message::kEager, 1, 4), {4});
  EXPECT_FALSE(first->IsCompleted());
  mesh_.Deliver(Offer(Message::kRequest, kLarge, 3));
  mesh_.Deliver(Offer(Message::kEager, 1, 1), {1});
  EXPECT_TRUE(first->Wait().ok());
  EXPECT_TRUE(second->Wait().ok());
  EXPECT_TRUE(fourth->Wait().ok());
  EXPECT_EQ(one[0], 1);
  EXPECT_EQ(two[0], 2);
  EXPECT_EQ(three[0], 4);
  EXPECT_EQ(mesh_.TakeSent().type, Message::kClear);
  mesh_.Deliver(Offer(Message::kDone, 0, 3));
  EXPECT_TRUE(third->Wait().ok());
}

// Though its connection has ended, and nobody was told of it.
TEST_F(MailPointToPointTest, WhatAPeerLeftBeforeItWentIsTaken) {
  const auto looker = MailOf(0);
  looker->BeginLooking();
  std::vector<float> values(1);
  const auto work = Receive(values);
  Leave(Offer(Message::kEager, 1, 1), {7});
  mesh_.Leave();
  AwaitCompletion(*work);
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(values[0], 7);
}

TEST_F(MailPointToPointTest, AWorkMayBeWaitedForWhenAllIsOver) {
  std::vector<float> values(1);
  const auto work = Receive(values);
  std::thread waits([&] { EXPECT_TRUE(absl::IsCancelled(work->Wait())); });
  End(absl::CancelledError("over"));
  waits.join();
  EXPECT_TRUE(absl::IsCancelled(work->Wait()));
}

}  // namespace
}  // namespace muster::dataplane::gloo_internal
