// Tests messages through the ShmMailbox between two ranks: see the fixture.

#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "dataplane/cpu/p2p/point_to_point_fixture.h"
#include "dataplane/cpu/transport/p2p_connections.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/shm_mailbox.h"
#include "dataplane/cpu/transport/spin_wait.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

using MailboxOptions = PointToPoint::MailboxOptions;

// Each rank has a slot for the other. This rank opens its own when it first
// sends or receives.
class AnyMailPointToPointTest : public PointToPointTest {
 protected:
  explicit AnyMailPointToPointTest(const MailboxOptions& options) {
    point_to_point_->SetMail([this] { return MakeMailbox(0); }, options);
    peer_mail_ = MakeMailbox(1);
    peer_mail_->Open(0);
  }

  void Leave(const Message& message, std::vector<float> payload = {}) {
    ASSERT_TRUE(peer_mail_->Put(0, message, payload.data(),
                                payload.size() * sizeof(float)));
  }
  // Waits without polling the mailbox, unlike Work::Wait.
  static void AwaitCompletion(Work& work) {
    std::promise<void> complete;
    work.OnCompletion([&](const Status&) { complete.set_value(); });
    complete.get_future().wait();
  }
  // Takes the messages that this rank has put into the mailbox.
  std::vector<Message> TakeLeft() {
    std::vector<Message> messages;
    peer_mail_->Take(0,
                     [&](const Message& message, std::span<const std::byte>) {
                       messages.push_back(message);
                     });
    return messages;
  }
  // Waits until a waiter is about to sleep.
  void AwaitWants() {
    const auto own = MakeMailbox(0);
    while (!own->wants()) std::this_thread::yield();
  }

  std::shared_ptr<ShmMailbox> MakeMailbox(int place) {
    return std::make_shared<ShmMailbox>(
        std::shared_ptr<void>(memory_, memory_.get()), std::vector<int>{0, 1},
        place);
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };

  const std::shared_ptr<Line[]> memory_ =
      std::make_shared<Line[]>(ShmMailbox::BytesFor(2) / sizeof(Line));
  std::shared_ptr<ShmMailbox> peer_mail_;
};

// The mailbox thread sleeps until it is woken.
class MailPointToPointTest : public AnyMailPointToPointTest {
 protected:
  explicit MailPointToPointTest(MailboxOptions options = {})
      : AnyMailPointToPointTest(WithoutPolls(options)) {
    // Send number 1 starts the mailbox thread.
    std::vector<float> values(1);
    EXPECT_TRUE(Send(values)->IsCompleted());
    EXPECT_EQ(TakeLeft().size(), 1u);
    // Wait until it sleeps. If that cannot be seen, a test may pass wrongly.
    const Instant until = Clock::now() + std::chrono::seconds(1);
    while (!SomebodySleepsIn(memory_.get()) && Clock::now() < until) {
      std::this_thread::yield();
    }
  }

 private:
  static MailboxOptions WithoutPolls(MailboxOptions options) {
    options.look_period = std::chrono::hours(24);
    options.idle_polls = 1'000'000;
    return options;
  }
  // Whether a thread of this process is in futex(2) on `word`.
  static bool SomebodySleepsIn(const void* word) {
    const std::string begin = absl::StrFormat(
        "%d 0x%x ", SYS_futex, reinterpret_cast<uintptr_t>(word));
    std::error_code error;
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/self/task", error)) {
      std::ifstream file(task.path() / "syscall");
      std::string line;
      if (std::getline(file, line) && line.starts_with(begin)) return true;
    }
    return false;
  }
};

TEST_F(MailPointToPointTest, ASmallSendIsCompleteAtOnce) {
  std::vector<float> values = {1, 2};
  transport_.HoldSends();
  const auto work = Send(values, /*tag=*/3);
  EXPECT_TRUE(work->IsCompleted());
  const std::vector<Message> left = TakeLeft();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].type, Message::kEager);
  EXPECT_EQ(left[0].tag, 3);
  EXPECT_EQ(left[0].count, 2u);
  EXPECT_EQ(left[0].id, 2u);
}

TEST_F(MailPointToPointTest, WhatTheBoxDoesNotTakeGoesOnTheConnection) {
  std::vector<float> values(kLarge - 1);
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 9; ++i) works.push_back(Send(values));
  EXPECT_EQ(TakeLeft().size(), 7u);
  EXPECT_EQ(transport_.TakeSent().id, 9u);
  EXPECT_EQ(transport_.TakeSent().id, 10u);
  for (const auto& work : works) EXPECT_TRUE(work->Wait().ok());
  EXPECT_TRUE(Send(values)->IsCompleted());
  EXPECT_EQ(TakeLeft().size(), 1u);
}

// A completed send must arrive even if earlier, incomplete ones do not.
TEST_F(MailPointToPointTest, NothingOvertakesWhatHasNotLeft) {
  transport_.HoldSends();
  std::vector<float> large(kLarge - 1);
  std::vector<float> small(1);
  for (int i = 0; i < 8; ++i) Send(large);
  EXPECT_EQ(TakeLeft().size(), 7u);
  EXPECT_FALSE(Send(small)->IsCompleted());
  EXPECT_TRUE(TakeLeft().empty());
  EXPECT_EQ(transport_.TakeSent().id, 9u);
  EXPECT_EQ(transport_.TakeSent().id, 10u);
}

TEST_F(MailPointToPointTest, CreditThatHasComeCounts) {
  std::vector<float> values(1);
  for (int i = 1; i < 64; ++i) Send(values);
  EXPECT_EQ(TakeLeft().size(), 63u);
  Leave(Credit(1));
  Send(values);
  const auto last = Send(values);
  const std::vector<Message> left = TakeLeft();
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].type, Message::kEager);
  EXPECT_EQ(left[1].type, Message::kRequest);
  EXPECT_FALSE(last->IsCompleted());
}

TEST_F(MailPointToPointTest, WhoWaitsTakesWhatHasCome) {
  std::vector<float> values(2);
  const auto work = Receive(values);
  Leave(Offer(Message::kEager, 2, 1), {5, 6});
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(work->source_rank(), 1);
  EXPECT_EQ(values, (std::vector<float>{5, 6}));
}

TEST_F(MailPointToPointTest, WhoSleepsIsRungFor) {
  for (uint64_t id = 1; id <= 100; ++id) {
    std::vector<float> values(1);
    const auto work = Receive(values);
    std::thread waits([&] { EXPECT_TRUE(work->Wait().ok()); });
    AwaitWants();
    Leave(Offer(Message::kEager, 1, id), {7});
    waits.join();
    EXPECT_EQ(values[0], 7);
    TakeLeft();
  }
}

// Messages come some time after their receiver began to wait.
class LateMailPointToPointTest : public MailPointToPointTest {
 protected:
  using MailPointToPointTest::MailPointToPointTest;

  struct Wait {
    // True if the waiter was about to sleep when its message came.
    bool sleeps = false;
    // Processor time.
    std::chrono::nanoseconds time;
  };
  // Waits for one receive whose message comes `late` after its start.
  Wait AwaitOne(std::chrono::nanoseconds late) {
    std::vector<float> values(1);
    const auto work = Receive(values);
    std::atomic<bool> waits{false};
    Wait wait;
    std::thread waiting([&] {
      waits.store(true);
      const std::chrono::nanoseconds began = ThreadTime();
      EXPECT_TRUE(work->Wait().ok());
      wait.time = ThreadTime() - began;
    });
    while (!waits.load()) std::this_thread::yield();
    const Instant until = Clock::now() + late;
    while (Clock::now() < until) {
    }
    wait.sleeps = own_->wants();
    LeaveNext();
    waiting.join();
    TakeLeft();
    return wait;
  }
  void LeaveNext() { Leave(Offer(Message::kEager, 1, ++id_), {7}); }
  // A number of receives, each with a message after 1 ms.
  static constexpr int kTimes = 16;
  static constexpr std::chrono::milliseconds kLate{1};

 private:
  static std::chrono::nanoseconds ThreadTime() {
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) +
           std::chrono::nanoseconds(now.tv_nsec);
  }

  const std::shared_ptr<ShmMailbox> own_ = MakeMailbox(0);
  uint64_t id_ = 0;
};

class CrowdedMailPointToPointTest : public LateMailPointToPointTest {
 protected:
  CrowdedMailPointToPointTest()
      : LateMailPointToPointTest({.is_crowded = true}) {}
};

// Otherwise one sleep could cause the next for ever (see SpinBudget). On a busy
// machine most waits sleep; without the adaptation all would.
TEST_F(LateMailPointToPointTest, WhoHasSleptForWhatCameSoonLooksForLonger) {
  int spins = 0;
  for (int time = 0; time < 300 && spins < kTimes / 2; ++time) {
    if (!AwaitOne(kLate).sleeps) ++spins;
  }
  EXPECT_EQ(spins, kTimes / 2);
}

TEST_F(CrowdedMailPointToPointTest, WhereProcessorsAreWantedHeDoesNot) {
  std::chrono::nanoseconds together{0};
  for (int time = 0; time < kTimes; ++time) together += AwaitOne(kLate).time;
  EXPECT_LT(together, kTimes * kLate / 2);
}

// The message may come much later than a short timeout.
TEST_F(LateMailPointToPointTest, WhoAsksForAShortTimeLearnsNothingFromThat) {
  std::vector<std::chrono::nanoseconds> times;
  for (int time = 0; time < 20; ++time) {
    std::vector<float> values(1);
    const auto asked = Receive(values);
    EXPECT_TRUE(IsDeadlineExceeded(
        asked->Wait(Clock::now() + std::chrono::microseconds(500))));
    LeaveNext();
    EXPECT_TRUE(asked->Wait().ok());
    TakeLeft();
    // This wait is too long for the budget to grow, too.
    times.push_back(AwaitOne(2 * SpinBudget::kMost).time);
  }
  std::ranges::sort(times);
  EXPECT_LT(times[times.size() / 2], SpinBudget::kMost / 4);
}

// Repeated IsCompleted wakes the mailbox thread.
TEST_F(MailPointToPointTest, WhoAsksIsTold) {
  std::vector<float> values(1);
  const auto work = Receive(values);
  Leave(Offer(Message::kEager, 1, 1), {7});
  while (!work->IsCompleted()) std::this_thread::yield();
  EXPECT_EQ(values[0], 7);
}

// A receive takes a message that has already come.
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

// Start completes no other operation: its caller may hold locks that the
// other's callbacks need.
TEST_F(MailPointToPointTest, AStartLeavesTheEndOfOthersToThoseWhoWait) {
  std::vector<float> values(1);
  std::vector<float> other(1);
  Mutex mutex;
  const auto first = Receive(values);
  first->OnCompletion([&](const Status&) { MutexLock lock(mutex); });
  {
    MutexLock lock(mutex);
    Leave(Offer(Message::kEager, 1, 1), {7});
    Receive(other, /*tag=*/9);
    EXPECT_EQ(values[0], 7);
    EXPECT_FALSE(first->IsCompleted());
  }
  EXPECT_TRUE(first->Wait().ok());
}

TEST_F(MailPointToPointTest, WhoSleepsIsToldOfWhatAStartHasTaken) {
  const auto looker = MakeMailbox(0);
  for (uint64_t id = 1; id <= 20; ++id) {
    std::vector<float> values(1);
    std::vector<float> other(1);
    const auto first = Receive(values);
    std::thread waits([&] { EXPECT_TRUE(first->Wait().ok()); });
    AwaitWants();
    // While a thread polls, the peer wakes none.
    looker->BeginLooking();
    Leave(Offer(Message::kEager, 1, 2 * id - 1), {7});
    const auto second = Receive(other, /*tag=*/9);
    waits.join();
    EXPECT_EQ(values[0], 7);
    Message last = Offer(Message::kEager, 1, 2 * id);
    last.tag = 9;
    Leave(last, {8});
    EXPECT_TRUE(second->Wait().ok());
    looker->EndLooking();
    TakeLeft();
  }
}

// The same if nothing else runs.
TEST_F(MailPointToPointTest, WhoSleepsIsToldOfTheLastThatAStartHasTaken) {
  const auto looker = MakeMailbox(0);
  for (uint64_t id = 1; id <= 20; ++id) {
    std::vector<float> values(1);
    std::vector<float> more(1);
    const auto first = Receive(values);
    std::thread waits([&] { EXPECT_TRUE(first->Wait().ok()); });
    AwaitWants();
    looker->BeginLooking();
    Leave(Offer(Message::kEager, 1, 2 * id - 1), {7});
    Leave(Offer(Message::kEager, 1, 2 * id), {8});
    EXPECT_TRUE(Receive(more)->IsCompleted());
    waits.join();
    EXPECT_EQ(values[0], 7);
    EXPECT_EQ(more[0], 8);
    looker->EndLooking();
    TakeLeft();
  }
}

// Offers are matched in the order of their ids, whichever way they came.
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
  transport_.Deliver(Offer(Message::kRequest, kLarge, 3));
  transport_.Deliver(Offer(Message::kEager, 1, 1), {1});
  EXPECT_TRUE(first->Wait().ok());
  EXPECT_TRUE(second->Wait().ok());
  EXPECT_TRUE(fourth->Wait().ok());
  EXPECT_EQ(one[0], 1);
  EXPECT_EQ(two[0], 2);
  EXPECT_EQ(three[0], 4);
  EXPECT_EQ(TakeLeft().back().type, Message::kClear);
  transport_.Deliver(Offer(Message::kTensor, 0, 3), large);
  EXPECT_TRUE(third->Wait().ok());
}

TEST_F(MailPointToPointTest, EarlyMessagesAreBounded) {
  // Number 1 never comes.
  std::vector<float> values(1);
  (void)Receive(values);
  for (uint64_t id = 2; id <= 66; ++id) {
    transport_.Deliver(Offer(Message::kEager, 1, id), {5});
  }
  EXPECT_EQ(Failure(), InternalError("rank 1 sent more than 64 small tensors "
                                     "that nobody received"));
}

// The connection has ended, and no thread was woken for the message.
TEST_F(MailPointToPointTest, WhatAPeerLeftBeforeItWentIsTaken) {
  const auto looker = MakeMailbox(0);
  looker->BeginLooking();
  std::vector<float> values(1);
  const auto work = Receive(values);
  Leave(Offer(Message::kEager, 1, 1), {7});
  transport_.Leave();
  AwaitCompletion(*work);
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(values[0], 7);
}

TEST_F(MailPointToPointTest, AWorkMayBeWaitedForWhenAllIsOver) {
  std::vector<float> values(1);
  const auto work = Receive(values);
  std::thread waits([&] { EXPECT_TRUE(IsCancelled(work->Wait())); });
  End(CancelledError("over"));
  waits.join();
  EXPECT_TRUE(IsCancelled(work->Wait()));
}

TEST_F(MailPointToPointTest, TheEndWaitsForWhoDoesWhatMailHasBrought) {
  std::vector<float> values(1);
  std::promise<void> called;
  std::promise<void> go;
  bool is_over = false;
  const auto work = Receive(values);
  work->OnCompletion([&](const Status&) {
    called.set_value();
    go.get_future().wait();
    is_over = true;
  });
  Leave(Offer(Message::kEager, 1, 1), {7});
  std::thread waits([&] { EXPECT_TRUE(work->Wait().ok()); });
  called.get_future().wait();
  std::thread ends([&] {
    End(CancelledError("over"));
    EXPECT_TRUE(is_over);
  });
  while (transport_.abort_cause().ok()) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  go.set_value();
  waits.join();
  ends.join();
}

// This rank reads the test's memory as the peer's.
class NearMailPointToPointTest : public MailPointToPointTest {
 protected:
  NearMailPointToPointTest() { transport_.MakeNear(mark_, kValue); }

  void LeaveRequest(const std::vector<float>& values, uint64_t id, int tag) {
    Message request = Offer(Message::kRequest, values.size(), id);
    request.address = reinterpret_cast<uint64_t>(values.data());
    request.tag = tag;
    Leave(request);
  }

 private:
  static constexpr uint64_t kValue = 0x1234567;

  Mark mark_{kValue};
};

TEST_F(NearMailPointToPointTest, WhoWaitsReadsWhatIsHis) {
  std::vector<float> theirs(3'000'000, 5);
  std::vector<float> mine(theirs.size());
  const auto work = Receive(mine);
  LeaveRequest(theirs, 1, 0);
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_TRUE(mine == theirs);
  const std::vector<Message> left = TakeLeft();
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].type, Message::kReads);
  EXPECT_EQ(left[1].type, Message::kTaken);
}

// Another thread reads it.
TEST_F(NearMailPointToPointTest, WhoWaitsReadsNothingLargeForOthers) {
  std::vector<float> theirs(3'000'000, 5);
  std::vector<float> mine(theirs.size());
  std::vector<float> small(1);
  const auto other = Receive(mine, /*tag=*/1);
  const auto work = Receive(small, /*tag=*/2);
  LeaveRequest(theirs, 1, 1);
  Message last = Offer(Message::kEager, 1, 2);
  last.tag = 2;
  Leave(last, {7});
  EXPECT_TRUE(work->Wait().ok());
  AwaitCompletion(*other);
  EXPECT_TRUE(mine == theirs);
}

// The mailbox thread with default options.
class TickingMailPointToPointTest : public AnyMailPointToPointTest {
 protected:
  TickingMailPointToPointTest() : AnyMailPointToPointTest(MailboxOptions()) {}
};

// A receive completes although no thread waits for it.
TEST_F(TickingMailPointToPointTest, WhatNobodyWaitsForCompletes) {
  for (uint64_t id = 1; id <= 100; ++id) {
    std::vector<float> values(1);
    const auto work = Receive(values);
    Leave(Offer(Message::kEager, 1, id), {7});
    AwaitCompletion(*work);
    EXPECT_EQ(values[0], 7);
    TakeLeft();
  }
}

// The mailbox thread usually sleeps before the next start.
class RestingMailPointToPointTest : public AnyMailPointToPointTest {
 protected:
  RestingMailPointToPointTest()
      : AnyMailPointToPointTest(
            {.look_period = std::chrono::microseconds(1), .idle_polls = 0}) {}
};

TEST_F(RestingMailPointToPointTest, WhatNobodyWaitsForCompletes) {
  for (uint64_t id = 1; id <= 300; ++id) {
    std::vector<float> values(1);
    for (uint64_t i = 0; i < id % 16; ++i) std::this_thread::yield();
    const auto work = Receive(values);
    Leave(Offer(Message::kEager, 1, id), {7});
    AwaitCompletion(*work);
    EXPECT_EQ(values[0], 7);
    TakeLeft();
  }
}

}  // namespace
}  // namespace muster::dataplane::cpu
